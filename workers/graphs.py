"""CUDA graphs of decode steps: what the host would launch kernel by kernel is replayed at once.

A graph does again what was launched while it was captured, on the same memory. So a step of one
token a request is copied into static memory, filled up to the next of a few sizes (*buckets*) with
rows that write to the null block, and the graph of that size is replayed. All else is run as it
comes: prompts, guesses, rows of adapters. Units: rows (a request's token), tokens, bytes.
"""

import logging
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol

import numpy as np
import torch

from blockyard.cuda.backend import AttentionBatch, StaticDecode
from blockyard.workers.attention import CachedAttention
from blockyard.workers.batch import FlatBatch
from blockyard.workers.collectives import Communicator
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.model import DecoderModel

__all__ = [
    "MOST_ROWS",
    "CapturedStep",
    "Capturer",
    "DecodeGraphs",
    "NewCapturer",
    "buckets_up_to",
]

logger = logging.getLogger(__name__)

MOST_ROWS = 512
"""Rows of the largest graph: a step of more keeps a GPU busy for longer than its launches take."""

_FIRST_BUCKETS = (1, 2, 4, 8)


class CapturedStep(Protocol):
    """A graph.

    Attributes:
        output: what the captured function returned; each replay writes it anew.
    """

    output: torch.Tensor

    def replay(self) -> None:
        """Queue all that was captured."""
        ...


class Capturer(Protocol):
    """Captures what a function queues on the device; all that one captures share their memory."""

    def warm_up(self, run: Callable[[], torch.Tensor]) -> None:
        """Run it as it is: kernels are compiled and loaded, libraries take their workspaces."""
        ...

    def capture(self, run: Callable[[], torch.Tensor]) -> CapturedStep:
        """Have `run` queue its work once, without computing anything.

        Raises:
            RuntimeError: it does what cannot be captured, such as to wait for the device.
        """
        ...

    def held_bytes(self) -> int:
        """Bytes of the device that are in use, by whomever."""
        ...


NewCapturer = Callable[[], Capturer]


def buckets_up_to(most_rows: int) -> tuple[int, ...]:
    """Sizes of graphs: four to each doubling from 8 on, so that few rows only fill up a step."""
    sizes = [size for size in _FIRST_BUCKETS if size < most_rows]
    step = 2
    while sizes and sizes[-1] >= _FIRST_BUCKETS[-1] and sizes[-1] + step < most_rows:
        sizes.append(sizes[-1] + step)
        if sizes[-1] == 8 * step:
            step *= 2
    return (*sizes, most_rows)


class DecodeGraphs:
    """Graphs of one model on one pool.

    Captured when a size is first needed. A group that is formed anew has other connections, to
    which old graphs would still speak, so they are dropped; so they are with the pool, which is
    made anew for weights, after sleep, and for every engine.

    Attributes:
        buckets: sizes of graphs.
        failed: whether it is known that nothing can be captured.

    Args:
        model: what is captured.
        cache: where it reads and writes.
        static: attention in static memory.
        new_capturer: makes what captures; another one once all graphs were dropped.
        most_rows: rows of the largest graph.
        communicator: whose ranks compute these steps together.
        failed: whether it is known that nothing can be captured.
    """

    def __init__(
        self,
        model: DecoderModel,
        cache: KVCache,
        static: StaticDecode,
        new_capturer: NewCapturer,
        most_rows: int,
        communicator: Communicator,
        failed: bool = False,
    ) -> None:
        self._model = model
        self._cache = cache
        self._static = static
        self._new_capturer = new_capturer
        self._capturer = new_capturer()
        self._communicator = communicator
        self._generation = communicator.generation
        self.buckets = buckets_up_to(most_rows)
        self._graphs: dict[tuple[int, Hashable], CapturedStep] = {}
        self.failed = failed
        device = model.device
        self._input_ids = torch.zeros(most_rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros(most_rows, dtype=torch.int64, device=device)
        self._every = torch.arange(most_rows, device=device)

    def __len__(self) -> int:
        """Graphs that there are."""
        return len(self._graphs)

    def run(self, batch: FlatBatch) -> torch.Tensor | None:
        """Logits of a batch's `sample_tokens`, good until the next step; None: run it as it comes.

        Which of the two depends on the batch alone, or on the group's size: ranks compute steps of
        one shape together, whether or not each could capture it.
        """
        count = len(batch.attention.counts)
        rows = self._bucket(batch)
        if rows is None or (self.failed and self._communicator.size == 1):
            return None
        if self._communicator.generation != self._generation:
            self._graphs.clear()
            self._capturer = self._new_capturer()
            self._generation = self._communicator.generation
        self._input_ids[:count].copy_(batch.input_ids)
        self._positions[:count].copy_(batch.positions)
        kind = self._static.fill(batch.attention, rows)
        graph = self._graphs.get((rows, kind))
        if graph is None and not self.failed:
            graph = self._capture(batch.attention, rows)
        if graph is not None:
            graph.replay()
            logits = graph.output
        elif self._communicator.size > 1:
            logits = self._step(rows)
        else:
            return None
        if len(batch.sample_tokens) == count and not batch.prompt_rows:
            return logits[:count]  # in order: every row, of which each is one token
        return logits[batch.sample_tokens]

    def capture_first(self, sizes: Iterable[int]) -> None:
        """Capture graphs of these sizes before a step needs them, the largest first.

        Smaller ones then use its memory again.
        """
        batch = _no_requests(self._cache, self._model.device)
        for rows in sorted(sizes, reverse=True):
            if not self.failed:
                self._static.fill(batch, rows)
                self._capture(batch, rows)

    def _bucket(self, batch: FlatBatch) -> int | None:
        counts = batch.attention.counts
        if len(counts) > self.buckets[-1] or len(batch.input_ids) > len(counts):
            return None
        if any(batch.adapters) or batch.prompt_rows:
            return None
        return next(size for size in self.buckets if size >= len(counts))

    def _step(self, rows: int) -> torch.Tensor:
        attention = CachedAttention(self._cache, self._static.step(rows))
        return self._model.forward(
            self._input_ids[:rows], self._positions[:rows], self._every[:rows], attention
        )

    def _capture(self, batch: AttentionBatch, rows: int) -> CapturedStep | None:
        """Capture the step that is filled in."""

        def run() -> torch.Tensor:
            return self._step(rows)

        # A step that is run twice is the same step: what it reads of itself it writes before.
        self._capturer.warm_up(run)
        # Running it has shown what kinds of layers there are; now all of them are filled in.
        kind = self._static.fill(batch, rows)
        try:
            graph = self._capturer.capture(run)
        except RuntimeError as error:
            self.failed = True
            logger.warning("no CUDA graphs: a decode step cannot be captured: %s", error)
            return None
        self._graphs[rows, kind] = graph
        return graph


def _no_requests(cache: KVCache, device: torch.device) -> AttentionBatch:
    """A step of rows that only fill it up."""
    none = np.zeros(0, dtype=np.int32)
    return AttentionBatch(
        counts=none,
        lengths=none,
        block_tables=torch.zeros(0, 1, dtype=torch.int32, device=device),
        slots=torch.zeros(0, dtype=torch.int64, device=device),
        block_size=cache.geometry.block_size,
    )
