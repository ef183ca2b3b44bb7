"""What other choices would hold: more or fewer ranks, another KV dtype, another block size.

Each alternative changes one thing and is planned like the original. Counts are over all GPUs of an
alternative, so that they compare. Units: requests, GPUs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from blockyard.scheduler.capacity.kv_budget import KvBudget, MemoryTooSmall
from blockyard.scheduler.capacity.kv_math import element_bits
from blockyard.scheduler.capacity.lengths import Lengths
from blockyard.scheduler.planner import plan_capacity

__all__ = ["Alternative", "plan_alternatives"]

_RANKS = (1, 2, 4, 8)
_KV_DTYPES = ("fp16", "fp8")
_BLOCK_SIZES = (8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Alternative:
    """One change, and how many requests run at once on `num_gpus` GPUs; None: does not fit."""

    change: str
    num_gpus: int
    contiguous_concurrency: int | None
    blocks_concurrency: int | None

    @property
    def blocks_per_gpu(self) -> float | None:
        """Requests under blocks for each GPU."""
        if self.blocks_concurrency is None:
            return None
        return self.blocks_concurrency / self.num_gpus


def plan_alternatives(
    budget: KvBudget, lengths: Lengths, shared_prefix_tokens: int = 0
) -> tuple[Alternative, ...]:
    """The original first, then one entry for each change. Empty where no memory is known."""
    if not budget.has_memory:
        return ()
    return tuple(
        _planned(change, changed, lengths, shared_prefix_tokens)
        for change, changed in _changes(budget)
    )


def _changes(budget: KvBudget) -> Iterator[tuple[str, KvBudget]]:
    yield "as planned", budget
    most = max(budget.num_gpus, 2 * budget.num_ranks)
    for ranks in _RANKS:
        if ranks != budget.num_ranks and ranks <= most:
            yield f"tp {ranks}", _with_ranks(budget, ranks)
    for dtype in _KV_DTYPES:
        if element_bits(dtype) != element_bits(budget.kv_dtype):
            yield f"kv {dtype}", replace(budget, kv_dtype=dtype)
    for size in _BLOCK_SIZES:
        if size != budget.block_size:
            yield f"block size {size}", replace(budget, block_size=size)


def _with_ranks(budget: KvBudget, ranks: int) -> KvBudget:
    """The same GPUs (or more, if there are too few) in groups of `ranks`."""
    changed = replace(budget, num_ranks=ranks, num_gpus=max(budget.num_gpus, ranks))
    if budget.kv_memory_bytes is None:
        return changed
    # Memory for KV was told for a group of the original size: what a rank no longer holds of the
    # weights is free for KV, and the other way round.
    room = budget.kv_memory_bytes // budget.num_ranks
    room += budget.rank_weight_bytes - changed.rank_weight_bytes
    return replace(changed, kv_memory_bytes=max(room, 0) * ranks)


def _planned(
    change: str, budget: KvBudget, lengths: Lengths, shared_prefix_tokens: int
) -> Alternative:
    try:
        plan = plan_capacity(budget, lengths, shared_prefix_tokens=shared_prefix_tokens)
    except MemoryTooSmall:
        return Alternative(change, budget.num_gpus, None, None)
    groups = budget.num_groups
    return Alternative(
        change,
        budget.num_gpus,
        plan.contiguous.concurrency * groups,
        plan.blocks.concurrency * groups,
    )
