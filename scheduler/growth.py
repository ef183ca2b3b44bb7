"""Blocks for requests that decode, once the slots of their tables are used up.

For the usual case: the block is there, and to append it is all that is to be done. Whoever finds
that it is not must look for one that others give. Units: blocks, tokens.
"""

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.draft import PlanDraft
from blockyard.scheduler.request import Request

__all__ = ["grow", "grow_all", "has_slot"]


def has_slot(request: Request) -> bool:
    """Whether a request wants another token and may write it to a slot that it holds."""
    start = request.num_planned
    return start + 1 < request.end_at and start < request.table.num_writable


def grow(batch: Batch, draft: PlanDraft, request: Request) -> bool:
    """Give a request without a slot the block that it needs; False when that is not all it needs.

    Or when it needs none, or there is none.
    """
    table = request.table
    if request.num_planned + 1 >= request.end_at or table.num_writable < table.num_slots:
        return False
    block_ids = batch.pool.allocate(1)
    if block_ids is None:
        return False
    batch.watermark.observe(1, 0)
    draft.grant((request,), block_ids)
    return True


def grow_all(batch: Batch, draft: PlanDraft, due: list[Request]) -> list[Request]:
    """Give those in lockstep who are due a block each, if there is one for everybody who runs.

    Who comes first makes no difference then. A table in lockstep ends with a block of its own.

    Returns:
        Who has still to have its turn: everybody, or those whose last token is under way.
    """
    others = sum(r.table.blocks_short(r.num_known) + 1 for r in batch.out_of_step)
    if batch.pool.num_available < len(due) + others:
        return due
    growing = [request for request in due if request.table.num_slots + 1 < request.end_at]
    ending: list[Request] = []
    if len(growing) < len(due):
        ending = [request for request in due if request.table.num_slots + 1 >= request.end_at]
    block_ids = batch.pool.allocate(len(growing)) or ()
    batch.watermark.observe(len(block_ids), 0)
    draft.grant(growing, block_ids)
    batch.lockstep.watch_grown(growing, batch.pool.block_size)
    return ending
