"""Whether a rank replays decode steps as CUDA graphs, and how much memory these take.

Units: rows (a request's token), blocks, bytes.
"""

import logging
from functools import partial

from blockyard.cuda.backend import AttentionBackend, HeadShape, StaticDecodeBackend
from blockyard.workers.collectives import Communicator
from blockyard.workers.config import CUDA_GRAPHS, WorkerConfig
from blockyard.workers.graph_capture import CudaCapturer
from blockyard.workers.graphs import MOST_ROWS, DecodeGraphs, NewCapturer
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.model import DecoderModel

__all__ = ["GraphSetup"]

logger = logging.getLogger(__name__)


class GraphSetup:
    """What is decided once for a loaded model.

    Attributes:
        refusal: why there are no graphs; None when there are. The same on all ranks of a group.

    Args:
        config: what the rank was told.
        model: loaded.
        backend: what computes its attention.
        geometry: of its blocks.
        communicator: this rank's end of its group.
        new_capturer: makes what captures; None means the device's own, if it has one.
    """

    def __init__(
        self,
        config: WorkerConfig,
        model: DecoderModel,
        backend: AttentionBackend,
        geometry: KVGeometry,
        communicator: Communicator,
        new_capturer: NewCapturer | None = None,
    ) -> None:
        self._model = model
        self._backend = backend
        self._geometry = geometry
        self._communicator = communicator
        self._most_rows = min(MOST_ROWS, config.max_running, config.max_step_tokens)
        self._widest = -(-config.max_context_tokens // config.block_size)
        self._failed = False
        if new_capturer is None and model.device.type == "cuda":
            new_capturer = partial(CudaCapturer, model.device)
        self._new_capturer = new_capturer
        self.refusal = self._refusal(config)
        if self.refusal is not None and model.device.type == "cuda":
            logger.info("decode steps run without CUDA graphs: %s", self.refusal)

    def measure(self) -> int:
        """Bytes that graphs of all sizes will hold, the null block included; none are left.

        The largest is captured, and the next, which uses the memory of the first again: what it
        adds is taken for what each of the others adds, of either kind of step.
        """
        if self.refusal is not None:
            return 0
        assert self._new_capturer is not None, "or it would be refused"
        meter = self._new_capturer()
        before = meter.held_bytes()
        graphs = self._make(KVCache(self._geometry, 1, self._model.device, null_block=True))
        held = []
        for rows in graphs.buckets[:-3:-1]:
            graphs.capture_first([rows])
            held.append(meter.held_bytes() - before)
        if graphs.failed:
            self._failed = True
            return self._geometry.block_bytes
        each = max(0, held[-1] - held[0])
        logger.info(
            "CUDA graphs of decode steps up to %d rows: %.0f MiB, and %.1f MiB for each of %d more",
            self._most_rows,
            held[0] / 2**20,
            each / 2**20,
            2 * len(graphs.buckets) - 1,
        )
        # Its pool was one block and the null block; the null block stays.
        return held[0] + (2 * len(graphs.buckets) - 1) * each - self._geometry.block_bytes

    def make(self, cache: KVCache) -> DecodeGraphs | None:
        """Graphs on a pool that has a null block; None when there are none.

        A rank that is alone captures them at once. Others have yet to meet: what they sum meanwhile
        is their own part, and would be in the graph so.
        """
        if self.refusal is not None or (self._failed and self._communicator.size == 1):
            return None
        graphs = self._make(cache)
        if self._communicator.size == 1:
            graphs.capture_first(graphs.buckets)
        return graphs

    def _make(self, cache: KVCache) -> DecodeGraphs:
        assert self._new_capturer is not None and isinstance(self._backend, StaticDecodeBackend)
        block_size = self._geometry.block_size
        return DecodeGraphs(
            self._model,
            cache,
            self._backend.static_decode(
                self._most_rows, self._widest, block_size, cache.null_block * block_size
            ),
            self._new_capturer,
            self._most_rows,
            self._communicator,
            self._failed,
        )

    def _refusal(self, config: WorkerConfig) -> str | None:
        if config.cuda_graphs not in CUDA_GRAPHS:
            known = ", ".join(CUDA_GRAPHS)
            raise ValueError(f"cuda_graphs is {config.cuda_graphs!r}; known are {known}")
        if config.cuda_graphs == "off":
            return "they are switched off"
        if self._new_capturer is None:
            return f"the device is {self._model.device}"
        if not isinstance(self._backend, StaticDecodeBackend):
            return "attention is computed in plain torch"
        shape = self._model.attention
        return self._backend.static_refusal(
            HeadShape(
                heads=shape.heads,
                kv_heads=shape.kv_heads,
                head_dim=shape.head_dim,
                block_size=self._geometry.block_size,
                dtype=self._model.dtype,
                kv_dtype=self._geometry.dtype,
            )
        )
