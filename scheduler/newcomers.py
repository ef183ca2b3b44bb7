"""Blocks for newcomers with whom nothing is to be settled first.

For the usual case: nobody has its prefix, nor computes it, and there is room for all that it
knows. Whoever is not so goes the long way, which does the same for those who are. Units: blocks,
tokens.
"""

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.request import Request

__all__ = ["find_room"]


def find_room(batch: Batch, request: Request, most_tokens: int) -> tuple[int, ...] | None:
    """Blocks for all that the head of the queue knows, which it is to compute in this step.

    None when the step may not compute so many tokens, it may share blocks or held some before, it
    is to fork, or not so many are free that those who run can grow.
    """
    num_tokens, parking, pool = len(request.tokens), batch.parking, batch.pool
    if (
        num_tokens > most_tokens
        or request.is_returning
        or request.pending_forks
        or request.path
        or request.host_ids
        or parking.holders
        or not batch.cache.is_alone(request)
    ):
        return None
    needed = -(-num_tokens // pool.block_size)
    if needed + batch.watermark.blocks(len(batch.running)) > pool.num_available:
        return None
    return pool.allocate(needed)
