"""Captures CUDA graphs by torch. No run on a card has confirmed it yet.

Units: bytes.
"""

from collections.abc import Callable
from typing import Any

import torch

from blockyard.workers.graphs import CapturedStep

__all__ = ["CudaCapturer"]


class _CudaGraph:
    """See `CapturedStep`."""

    def __init__(self, graph: Any, output: torch.Tensor) -> None:
        self._graph = graph
        self.output = output

    def replay(self) -> None:
        """Queue the graph on torch's current stream."""
        self._graph.replay()


class CudaCapturer:
    """A `Capturer` of torch's graphs, which share one pool of memory.

    They may: steps follow one another on one stream, and what one leaves in the pool is read before
    the next begins.

    What a captured step launches must be launched on torch's current stream, meanwhile the
    capturing one: torch's own operations are, CuPy's kernels are by `GpuKernel`, and nccl, which
    has a stream of its own, is tied to it by events that are captured too.

    Args:
        device: of everything.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, run: Callable[[], torch.Tensor]) -> None:
        """Run it on a stream of its own, as the capture will: libraries keep state by stream."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        torch.cuda.synchronize(self._device)

    def capture(self, run: Callable[[], torch.Tensor]) -> CapturedStep:
        """See `Capturer`."""
        graph = torch.cuda.CUDAGraph()
        # Only what this thread does may spoil the capture. Others go on meanwhile: nccl's watchdog
        # asks for events, adapters are loaded, memory is counted; by the default mode of CUDA any
        # such call would end it. What this thread must not do, it must not do: hence not relaxed.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = run()
        return _CudaGraph(graph, output)

    def held_bytes(self) -> int:
        """Memory of the device that is in use."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free
