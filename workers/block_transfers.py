"""Moves of blocks beside the steps: who waits for whom is decided block by block.

A step waits for the moves of blocks that it touches, and a move for what touched its blocks before:
neither for the other as a whole. So a step may be over before its moves are; then its rank has not
finished it, and says so later, which opens the fences behind which its blocks are. Knows nothing of
requests. Units: blocks, steps, seconds.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from blockyard.cuda.backend import AttentionBatch
from blockyard.scheduler.plan import BlockCopy, StepPlan, StepResult
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.move_lanes import Lane, Ticket

__all__ = ["BlockTransfers"]

_Moves = Callable[[Sequence[BlockCopy]], None]


@dataclass(frozen=True, slots=True)
class _Pending:
    """Work in a lane. A device block that is read may be read by others too, and no more.

    Attributes:
        step: whose plan it is of.
        ticket: of the work.
        blocks: how many.
        reads, writes: device blocks.
        host: host blocks, read or written.
    """

    step: int
    ticket: Ticket
    blocks: int
    reads: frozenset[int]
    writes: frozenset[int]
    host: frozenset[int]

    def meets(self, reads: frozenset[int], writes: frozenset[int]) -> bool:
        """Whether somebody who reads and writes these device blocks must come after it."""
        return not (self.writes.isdisjoint(reads | writes) and self.reads.isdisjoint(writes))


class BlockTransfers:
    """The moves of one cache.

    Args:
        cache: whose blocks move.
        lanes: for moves out and for moves in.
    """

    def __init__(self, cache: KVCache, lanes: tuple[Lane, Lane]) -> None:
        self._cache = cache
        self._out, self._in = lanes
        self._pending: deque[_Pending] = deque()
        self._step = 0
        self._moved, self._seconds = 0, 0.0

    def begin(self, plan: StepPlan, batch: AttentionBatch | None) -> None:
        """Begin a plan's moves: all swaps out, then all copies, then all swaps in.

        What is queued on the device afterwards comes after those of them that it must follow, if it
        is the computing of `batch`.

        Raises:
            ValueError: see `KVCache.check_moves`. Nothing was moved.
        """
        cache = self._cache
        cache.check_moves(plan.swap_outs, plan.copies, plan.swap_ins)
        self._step = plan.step
        self._settle()
        if not (self._pending or plan.swap_outs or plan.copies or plan.swap_ins):
            return  # as in most steps: nobody waits for anybody
        reads, writes = _touched(batch)
        overwritten = (
            writes
            | {move.destination for move in plan.copies}
            | {move.destination for move in plan.swap_ins}
        )
        # First those that the step waits for.
        urgent = [move for move in plan.swap_outs if move.source in overwritten]
        others = [move for move in plan.swap_outs if move.source not in overwritten]
        for moves in (urgent, others):
            self._start(self._out, cache.swap_out, moves, host_is_source=False)
        if plan.copies:
            sources = frozenset(move.source for move in plan.copies)
            targets = frozenset(move.destination for move in plan.copies)
            self._hold(sources, targets)
            cache.copy(plan.copies)
        urgent = [move for move in plan.swap_ins if move.destination in reads | writes]
        others = [move for move in plan.swap_ins if move.destination not in reads | writes]
        for moves in (urgent, others):
            self._start(self._in, cache.swap_in, moves, host_is_source=True)
        self._hold(reads, writes)

    @property
    def finished_step(self) -> int:
        """Newest step of which, and of all before which, all moves have ended."""
        self._settle()
        return self._pending[0].step - 1 if self._pending else self._step

    def finish(self) -> None:
        """Wait for all moves."""
        for pending in self._pending:
            pending.ticket.wait()
        self._settle()

    def tell(self, result: StepResult) -> StepResult:
        """The result of the newest step with what is to be told of moves."""
        told = replace(
            result,
            moving=self.finished_step < self._step,
            moved_blocks=self._moved,
            copy_seconds=self._seconds,
        )
        self._moved, self._seconds = 0, 0.0
        return told

    def _start(
        self, lane: Lane, swap: _Moves, moves: Sequence[BlockCopy], *, host_is_source: bool
    ) -> None:
        if not moves:
            return
        sources = frozenset(move.source for move in moves)
        targets = frozenset(move.destination for move in moves)
        nothing: frozenset[int] = frozenset()
        reads, writes, host = (
            (nothing, targets, sources) if host_is_source else (sources, nothing, targets)
        )
        after = [
            pending.ticket
            for pending in self._pending
            if pending.meets(reads, writes) or not pending.host.isdisjoint(host)
        ]
        ticket = lane.run(partial(swap, moves), after)
        self._pending.append(_Pending(self._step, ticket, len(moves), reads, writes, host))

    def _hold(self, reads: frozenset[int], writes: frozenset[int]) -> None:
        for pending in self._pending:
            if pending.meets(reads, writes):
                pending.ticket.hold()

    def _settle(self) -> None:
        """Forget what has ended, up to the first that has not."""
        while self._pending and self._pending[0].ticket.done():
            over = self._pending.popleft()
            self._moved += over.blocks
            self._seconds += over.ticket.seconds()


def _touched(batch: AttentionBatch | None) -> tuple[frozenset[int], frozenset[int]]:
    """Device blocks that a step reads, and those that it writes to."""
    if batch is None:
        return frozenset(), frozenset()
    tables = batch.host_tables
    assert tables is not None, "batches of plans have them"
    size = batch.block_size
    used = -(-batch.lengths // size)
    first = (batch.lengths - batch.counts) // size
    columns = np.arange(tables.shape[1])[None, :]
    own = columns < used[:, None]
    written = own & (columns >= first[:, None])
    return _ids(tables[own]), _ids(tables[written])


def _ids(blocks: Iterable[int]) -> frozenset[int]:
    return frozenset(np.unique(np.asarray(blocks)).tolist())
