"""Draws the picture of a scheduler's pool.

For people who look and not for steps: it walks every table and every block that is not free.
Units: blocks, token slots.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from blockyard.scheduler.explain import Explanation, explain
from blockyard.scheduler.request import Request
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.yard_map import NOBODY, YardMap, YardRequest

__all__ = ["draw_yard"]

_MOST_REQUESTS = 200
_MOST_EXPLAINED = 20
_FULL = 255


def draw_yard(scheduler: Scheduler, max_cells: int) -> YardMap:
    """Draw a scheduler's pool in at most `max_cells` cells, as it is between two actions.

    Reads the scheduler's own parts, like a method: what no step needs is not in its file.
    """
    batch = scheduler._batch
    view, pool = batch.view(scheduler._step), batch.pool
    waiting = (*view.queued, *batch.cache.waits.members())
    holding = (*batch.running, *batch.parking.holders)
    cached, fenced = pool.unheld()
    num_blocks = pool.num_blocks
    listed = list({id(request): request for request in (*holding, *waiting)}.values())
    explained = {id(request): explain(view, request) for request in waiting[:_MOST_EXPLAINED]}
    slots, owners = _slots_of(listed, num_blocks)
    active = slots >= 0
    per_cell = -(-num_blocks // max(1, max_cells))
    blocks = _in_cells(np.ones(num_blocks, dtype=np.int64), per_cell)
    active_blocks = _in_cells(active.astype(np.int64), per_cell)
    return YardMap(
        num_blocks=num_blocks,
        blocks_per_cell=per_cell,
        active=_share(active_blocks, blocks),
        cached=_share(_in_cells(_marked(cached, num_blocks), per_cell), blocks),
        fenced=_share(_in_cells(_marked(fenced, num_blocks), per_cell), blocks),
        filled=_share(
            _in_cells(np.where(active, slots, 0), per_cell),
            np.maximum(1, active_blocks * pool.block_size),
        ),
        owners=_first_owners(owners, active, per_cell).astype("<u2").tobytes(),
        requests=tuple(
            _describe(request, explained.get(id(request))) for request in listed[:_MOST_REQUESTS]
        ),
        num_requests=len(listed),
    )


def _slots_of(requests: Sequence[Request], num_blocks: int) -> tuple[NDArray[np.int64], ...]:
    """Filled slots of each active block, -1 for others, and the index of who holds it.

    A block that several hold is drawn as the first one's: it was there before the others came.
    """
    slots = np.full(num_blocks, -1, dtype=np.int64)
    owners = np.full(num_blocks, NOBODY, dtype=np.int64)
    for index in range(len(requests) - 1, -1, -1):
        table = requests[index].table
        if not table.block_ids:
            continue
        ids = np.asarray(table.block_ids, dtype=np.int64)
        starts = np.arange(len(ids), dtype=np.int64) * table.block_size
        filled = np.clip(requests[index].num_computed - starts, 0, table.block_size)
        slots[ids] = np.maximum(slots[ids], filled)
        owners[ids] = index if index < _MOST_REQUESTS else NOBODY
    return slots, owners


def _marked(block_ids: Iterable[int], num_blocks: int) -> NDArray[np.int64]:
    marks = np.zeros(num_blocks, dtype=np.int64)
    marks[np.fromiter(block_ids, dtype=np.int64)] = 1
    return marks


def _in_cells(values: NDArray[np.int64], per_cell: int) -> NDArray[np.int64]:
    if per_cell == 1:
        return values
    summed: NDArray[np.int64] = np.add.reduceat(values, np.arange(0, len(values), per_cell))
    return summed


def _first_owners(
    owners: NDArray[np.int64], active: NDArray[np.bool_], per_cell: int
) -> NDArray[np.int64]:
    shown = np.where(active, owners, NOBODY)
    if per_cell == 1:
        return shown
    cells = np.arange(0, len(shown), per_cell)
    # The index of a cell's first active block, far beyond the pool when it has none.
    places = np.where(active, np.arange(len(shown)), len(shown))
    first = np.minimum.reduceat(places, cells)
    return np.where(first < len(shown), shown[np.minimum(first, len(shown) - 1)], NOBODY)


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
    )
