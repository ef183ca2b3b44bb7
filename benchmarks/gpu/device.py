"""What the parts run on: a card, or this CPU with kernels in the emulation.

The same calls for both, so that the rehearsal runs the very code that a card will run.
Units: seconds, bytes.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from blockyard.cuda.compiler import default_cache_dir
from blockyard.cuda.launch import GpuLibrary, KernelLibrary, device_arch

__all__ = ["Card", "Device", "Rehearsal", "Timing", "make_device"]

_GRAPH_SECONDS = 2e-3
"""Work in one replay: enough that beginning it does not show."""

_MOST_REPEATS = 50
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: the median of some rounds, the least and the most.

    `graph` says whether calls were replayed from a CUDA graph, which leaves out Python's time.
    """

    seconds: float
    low: float
    high: float
    graph: bool

    def row(self, prefix: str = "") -> dict[str, Any]:
        """As values of a result, in microseconds."""
        values = {"us": self.seconds, "low_us": self.low, "high_us": self.high}
        row: dict[str, Any] = {prefix + name: round(1e6 * each, 3) for name, each in values.items()}
        return row if self.graph else {**row, prefix + "graph": False}


class Device(Protocol):
    """What a part needs of the machine.

    Attributes:
        name: of the card.
        torch_device: of all tensors.
        library: where kernels come from.
        slots: thread blocks that run at once.
        emulated: whether times mean nothing.
        warpgroups: whether it has Hopper's own instructions.
    """

    name: str
    torch_device: torch.device
    library: KernelLibrary
    slots: int
    emulated: bool
    warpgroups: bool

    def settle(self) -> None:
        """Wait for all that was launched."""
        ...

    def free_bytes(self) -> int:
        """Memory that can be taken."""
        ...

    def time(self, run: Callable[[], object], calls: int = 1) -> Timing:
        """Time of one of the `calls` that `run` makes, on the device alone."""
        ...

    def wall(self, run: Callable[[], object], repeats: int = 1) -> Timing:
        """Time of `run` as its caller sees it: queued `repeats` times, then waited for."""
        ...

    def pinned(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Host memory that the device copies from and to directly."""
        ...

    def alive(self) -> bool:
        """Whether the device still answers."""
        ...

    def clear(self) -> None:
        """Give back memory that nothing holds."""
        ...


class Card:
    """A CUDA device."""

    emulated = False

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no CUDA device here; rehearse with --cpu (CPU=1)")
        self.torch_device = torch.device("cuda", 0)
        torch.cuda.set_device(self.torch_device)
        self.name = torch.cuda.get_device_name(self.torch_device)
        self.library: KernelLibrary = GpuLibrary(self.torch_device, default_cache_dir())
        properties = torch.cuda.get_device_properties(self.torch_device)
        self.slots = 2 * properties.multi_processor_count
        self.warpgroups = device_arch(self.torch_device) == "90a"

    def settle(self) -> None:
        """See `Device`."""
        torch.cuda.synchronize()

    def free_bytes(self) -> int:
        """See `Device`."""
        return int(torch.cuda.mem_get_info()[0])

    def time(self, run: Callable[[], object], calls: int = 1) -> Timing:
        """See `Device`."""
        run()  # compiles, loads, plans
        once = self._events(run)
        repeats = max(1, min(_MOST_REPEATS, int(_GRAPH_SECONDS / max(once, 1e-6))))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for _ in range(repeats):
                    run()
        except RuntimeError:
            torch.cuda.synchronize()
            return self._rounds(lambda: [run() for _ in range(repeats)], repeats * calls, False)
        return self._rounds(graph.replay, repeats * calls, True)

    def wall(self, run: Callable[[], object], repeats: int = 1) -> Timing:
        """See `Device`."""
        run()
        samples = []
        for _ in range(_ROUNDS):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(repeats):
                run()
            torch.cuda.synchronize()
            samples.append((time.perf_counter() - began) / repeats)
        return _timing(samples, False)

    def pinned(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """See `Device`."""
        return torch.empty(*shape, dtype=dtype, pin_memory=True)

    def alive(self) -> bool:
        """See `Device`."""
        try:
            torch.cuda.synchronize()
            return bool((torch.ones(8, device=self.torch_device) + 1).sum().item() == 16.0)
        except RuntimeError:
            return False

    def clear(self) -> None:
        """See `Device`."""
        gc.collect()
        torch.cuda.empty_cache()

    def _rounds(self, run: Callable[[], object], calls: int, graph: bool) -> Timing:
        run()
        return _timing([self._events(run) / calls for _ in range(_ROUNDS)], graph)

    def _events(self, run: Callable[[], object]) -> float:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        run()
        ended.record()
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3


class Rehearsal:
    """This CPU. Its times say only that the code runs."""

    name = "rehearsal"
    emulated = True
    warpgroups = True

    def __init__(self) -> None:
        from blockyard.cuda.emulator.build import EmulatedLibrary, missing_tools

        missing = missing_tools()
        if missing is not None:
            raise RuntimeError(f"the rehearsal runs kernels in the emulation: {missing}")
        torch.set_num_threads(1)
        self.torch_device = torch.device("cpu")
        self.library: KernelLibrary = EmulatedLibrary(default_cache_dir() / "emulated")
        self.slots = 8

    def settle(self) -> None:
        """See `Device`."""

    def free_bytes(self) -> int:
        """See `Device`."""
        return 64 << 20

    def time(self, run: Callable[[], object], calls: int = 1) -> Timing:
        """See `Device`."""
        run()
        began = time.perf_counter()
        run()
        return _timing([(time.perf_counter() - began) / calls], False)

    def wall(self, run: Callable[[], object], repeats: int = 1) -> Timing:
        """See `Device`."""
        return self.time(run)

    def pinned(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """See `Device`."""
        return torch.empty(*shape, dtype=dtype)

    def alive(self) -> bool:
        """See `Device`."""
        return True

    def clear(self) -> None:
        """See `Device`."""
        gc.collect()


def make_device(cpu: bool) -> Device:
    """The card, or what rehearses one.

    Raises:
        RuntimeError: there is none, or no tools to rehearse with.
    """
    return Rehearsal() if cpu else Card()


def _timing(samples: list[float], graph: bool) -> Timing:
    samples = sorted(samples)
    return Timing(samples[len(samples) // 2], samples[0], samples[-1], graph)
