"""Draws the picture of a scheduler's pool, a piece at a time.

For people who look and not for steps: it walks every table and every block that is not free. Of
a large pool that takes long, so it is drawn in pieces with steps between them: who is served is
told of the moment of the first piece, blocks are drawn as they are when their piece comes. Units:
blocks, token slots.
"""

from collections.abc import Generator, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from blockyard.scheduler.explain import Explanation, explain
from blockyard.scheduler.request import Request
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.yard_map import NOBODY, YardMap, YardRequest

__all__ = ["draw_yard", "yard_pieces"]

_MOST_REQUESTS = 200
_MOST_EXPLAINED = 20
_FULL = 255
_PIECE_BLOCKS = 16 * 1024
"""Blocks of tables that one piece walks: a pool up to this is drawn at once."""
_PIECE_CELL_BLOCKS = 8 * _PIECE_BLOCKS
"""Blocks of the pool that one piece sums up, which is quicker."""
_TABLE_BLOCKS = 128
"""What it costs to begin with one more table, in blocks."""


def draw_yard(scheduler: Scheduler, max_cells: int) -> YardMap:
    """Draw a scheduler's pool in at most `max_cells` cells, as it is between two actions."""
    pieces = yard_pieces(scheduler, max_cells)
    while True:
        try:
            next(pieces)
        except StopIteration as drawn:
            yard: YardMap = drawn.value
            return yard


def yard_pieces(scheduler: Scheduler, max_cells: int) -> Generator[None, None, YardMap]:
    """The same in pieces of a few milliseconds each; the scheduler may act between them.

    Reads the scheduler's own parts, like a method: what no step needs is not in its file.
    """
    batch = scheduler.batch
    view, pool = batch.view(scheduler._step), batch.pool
    waiting = (*view.queued, *batch.cache.waits.members())
    holding = (*batch.running, *batch.parking.holders)
    listed = list({id(request): request for request in (*holding, *waiting)}.values())
    explained = {id(request): explain(view, request) for request in waiting[:_MOST_EXPLAINED]}
    requests = tuple(
        _describe(request, explained.get(id(request))) for request in listed[:_MOST_REQUESTS]
    )
    num_blocks = pool.num_blocks
    if num_blocks > _PIECE_BLOCKS:
        yield
    # Filled slots of each active block, -1 for others, and the index of who holds it.
    slots = np.full(num_blocks, -1, dtype=np.int32)
    owners = np.full(num_blocks, NOBODY, dtype=np.uint16)
    walked = 0
    for index, request, begin in _table_parts(listed):
        walked += _TABLE_BLOCKS + _draw_table(request, index, begin, slots, owners)
        if walked >= _PIECE_BLOCKS:
            walked = 0
            yield
    published, fences = pool.unheld()
    cached = np.frombuffer(published, dtype=np.uint8)
    fenced = np.zeros(num_blocks, dtype=np.uint8)
    for fence in fences:
        for begin in range(0, len(fence), _PIECE_BLOCKS):
            if begin:
                yield
            fenced[fence[begin : begin + _PIECE_BLOCKS]] = 1
    per_cell = -(-num_blocks // max(1, max_cells))
    parts = []
    stride = max(1, _PIECE_CELL_BLOCKS // per_cell) * per_cell
    for begin in range(0, num_blocks, stride):
        piece = slice(begin, begin + stride)
        if begin:
            yield
        parts.append(_sum_up(slots[piece], owners[piece], cached[piece], fenced[piece], per_cell))
    states = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    blocks, active, kept, behind, filled, first = states
    return YardMap(
        num_blocks=num_blocks,
        blocks_per_cell=per_cell,
        active=_share(active, blocks),
        cached=_share(kept, blocks),
        fenced=_share(behind, blocks),
        filled=_share(filled, np.maximum(1, active * pool.block_size)),
        owners=first.astype("<u2").tobytes(),
        requests=requests,
        num_requests=len(listed),
    )


def _table_parts(requests: Sequence[Request]) -> Iterator[tuple[int, Request, int]]:
    """Index and request from the last to the first, and where each part of its table begins.

    A block that several hold is drawn as the first one's: it was there before the others came.
    """
    for index in range(len(requests) - 1, -1, -1):
        begin = 0
        # A table may shrink and grow while others are drawn.
        while begin < len(requests[index].table.block_ids):
            yield index, requests[index], begin
            begin += _PIECE_BLOCKS


def _draw_table(
    request: Request,
    index: int,
    begin: int,
    slots: NDArray[np.int32],
    owners: NDArray[np.uint16],
) -> int:
    """Draw a part of a request's table; how many blocks that were."""
    table = request.table
    ids = np.asarray(table.block_ids[begin : begin + _PIECE_BLOCKS], dtype=np.int64)
    starts = np.arange(begin, begin + len(ids), dtype=np.int32) * table.block_size
    filled = np.minimum(np.maximum(request.num_computed - starts, 0), table.block_size)
    slots[ids] = np.maximum(slots[ids], filled)
    owners[ids] = index if index < _MOST_REQUESTS else NOBODY
    return len(ids)


def _sum_up(
    slots: NDArray[np.int32],
    owners: NDArray[np.uint16],
    cached: NDArray[np.uint8],
    fenced: NDArray[np.uint8],
    per_cell: int,
) -> tuple[NDArray[np.int64], ...]:
    """Whole cells: blocks, active ones, cached ones, fenced ones, filled slots, first owner."""
    active = slots >= 0
    # A block that was taken or let go between two pieces is in one state all the same.
    idle = ~active
    fenced = fenced * idle
    cached = cached * (idle & (fenced == 0))
    cells = np.arange(0, len(slots), per_cell)
    # The index of a cell's first active block, far beyond the piece when it has none.
    places = np.where(active, np.arange(len(slots)), len(slots))
    first = np.minimum.reduceat(places, cells)
    shown = np.append(np.where(active, owners, NOBODY), NOBODY)[np.minimum(first, len(slots))]
    counts = (np.ones(len(slots)), active, cached, fenced, np.where(active, slots, 0))
    summed = (np.add.reduceat(count, cells, dtype=np.int64) for count in counts)
    return (*summed, shown)


def _share(part: NDArray[np.int64], whole: NDArray[np.int64]) -> bytes:
    """Parts of wholes as bytes; what is more than nothing is at least 1."""
    return (-(-part * _FULL // whole)).astype(np.uint8).tobytes()


def _describe(request: Request, explained: Explanation | None) -> YardRequest:
    return YardRequest(
        request_id=request.request_id,
        choice=request.choice,
        state=request.state.value,
        priority=request.spec.priority,
        prompt_tokens=request.num_prompt,
        output_tokens=request.num_output,
        max_tokens=request.max_tokens,
        computed_tokens=request.num_computed,
        num_blocks=len(request.table.block_ids),
        num_preemptions=request.num_preemptions,
        reason=explained.reason.value if explained else "",
        behind=explained.behind if explained else "",
        blocks_short=explained.blocks_short if explained else 0,
        estimate_seconds=explained.estimate_seconds if explained else None,
        tenant=request.spec.tenant,
        name=request.spec.name,
    )
