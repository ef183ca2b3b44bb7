"""How many requests a GPU memory holds: with contiguous reservations, and with blocks.

Arithmetic on a model's shape, a memory and lengths; it measures nothing. What cannot be computed
beforehand enters as the budget's stated allowance. Figures are of one group (one copy of the model
over its ranks). Units: bytes, tokens, token slots, blocks.
"""

import math
from dataclasses import dataclass

from blockyard.scheduler.capacity.kv_budget import KvBudget
from blockyard.scheduler.capacity.lengths import Lengths
from blockyard.scheduler.capacity.verdict import Verdict, give_verdict

__all__ = [
    "BlocksPlan",
    "CapacityPlan",
    "ContiguousPlan",
    "plan_capacity",
]

_SURE = 2.326  # standard deviations that one case in a hundred passes


@dataclass(frozen=True, slots=True)
class ContiguousPlan:
    """A server that reserves the limit for each request. Ratios count the mean length as held."""

    concurrency: int
    running: int
    refused: int
    reserved_slots: int
    filled_slots: int
    filled_bytes: int
    filled_ratio: float
    pool_filled_ratio: float
    reservation_waste: float


@dataclass(frozen=True, slots=True)
class BlocksPlan:
    """A server that gives blocks out on demand.

    `concurrency` is what fits on average; `sure_concurrency` fits in 99 of 100 moments, so that
    nobody is preempted. `needed_blocks` is for all requests asked about.
    """

    concurrency: int
    sure_concurrency: int
    running: int
    refused: int
    total_blocks: int
    block_bytes: int
    blocks_per_request: float
    shared_blocks: int
    needed_blocks: int
    filled_slots: int
    filled_ratio: float
    pool_filled_ratio: float


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What fits, both ways, and what to think of it."""

    kv_bytes_per_token: int
    rank_kv_bytes_per_token: int
    kv_memory_bytes: int
    total_slots: int
    requests: int | None
    kv_bytes_contiguous: int
    contiguous: ContiguousPlan
    blocks: BlocksPlan
    gain: float | None
    verdict: Verdict


def plan_capacity(
    budget: KvBudget,
    lengths: Lengths,
    requests: int | None = None,
    shared_prefix_tokens: int = 0,
    external_fragmentation: float | None = None,
) -> CapacityPlan:
    """Count what one group holds.

    Args:
        budget: model and memory. Where it has no memory, the memory is what a contiguous server
            needs for `requests`.
        lengths: of the requests; those over the limit are left out.
        requests: how many want to run at once in this group; None: as many as fit, or one where
            the budget has no memory.
        shared_prefix_tokens: tokens that all requests begin with; whole blocks of them are shared.
        external_fragmentation: of the memory today, if it is known.

    Raises:
        MemoryTooSmall: no room for KV.
        ValueError: figures that contradict one another.
    """
    if requests is not None and requests < 1:
        raise ValueError(f"requests is {requests}; it must be at least 1")
    lengths = lengths.within(budget.limit)
    if shared_prefix_tokens >= lengths.mean:
        raise ValueError(
            f"the shared prefix ({shared_prefix_tokens} tokens) must be shorter than the mean "
            f"length ({lengths.mean:g}), which includes it"
        )
    rank_token_bytes = budget.rank_kv_bytes_per_token
    if budget.has_memory:
        room = budget.rank_kv_memory_bytes()
    else:
        room = (requests or 1) * budget.limit * rank_token_bytes
    slots = room // rank_token_bytes
    contiguous = _contiguous(budget, lengths, slots, requests)
    block_bytes = rank_token_bytes * budget.block_size
    blocks = _blocks(budget, lengths, room // block_bytes, slots, requests, shared_prefix_tokens)
    token_bytes = budget.kv_bytes_per_token
    gain = blocks.concurrency / contiguous.concurrency if contiguous.concurrency else None
    return CapacityPlan(
        kv_bytes_per_token=token_bytes,
        rank_kv_bytes_per_token=rank_token_bytes,
        kv_memory_bytes=room * budget.num_ranks,
        total_slots=slots,
        requests=requests,
        kv_bytes_contiguous=(requests or contiguous.concurrency) * budget.limit * token_bytes,
        contiguous=contiguous,
        blocks=blocks,
        gain=gain,
        verdict=give_verdict(
            lengths.mean / budget.limit,
            lengths.p99,
            budget.limit,
            external_fragmentation,
            gain,
        ),
    )


def _contiguous(
    budget: KvBudget, lengths: Lengths, slots: int, requests: int | None
) -> ContiguousPlan:
    limit = budget.limit
    fits = slots // limit
    running = fits if requests is None else min(fits, requests)
    filled = int(running * lengths.mean)
    token_bytes = budget.kv_bytes_per_token
    return ContiguousPlan(
        concurrency=fits,
        running=running,
        refused=(requests or running) - running,
        reserved_slots=running * limit,
        filled_slots=filled,
        filled_bytes=filled * token_bytes,
        filled_ratio=lengths.mean / limit,
        pool_filled_ratio=filled / slots,
        reservation_waste=1 - lengths.mean / limit,
    )


def _blocks(
    budget: KvBudget,
    lengths: Lengths,
    total: int,
    slots: int,
    requests: int | None,
    shared_prefix_tokens: int,
) -> BlocksPlan:
    size = budget.block_size
    shared_blocks = shared_prefix_tokens // size
    shared_tokens = shared_blocks * size
    each = lengths.mean_blocks(size, shared_tokens)
    deviation = lengths.deviation_of_blocks(size, shared_tokens)
    room = max(total - shared_blocks, 0)
    # The mean of a grid of samples may be a hair above the true one; do not lose a request to that.
    fits = int(room / each + 1e-9)
    running = fits if requests is None else min(fits, requests)
    filled = int(running * (lengths.mean - shared_tokens)) + (shared_tokens if running else 0)
    used_blocks = running * each + (shared_blocks if running else 0)
    return BlocksPlan(
        concurrency=fits,
        sure_concurrency=_sure(room, each, deviation),
        running=running,
        refused=(requests or running) - running,
        total_blocks=total,
        block_bytes=budget.kv_bytes_per_token * size,
        blocks_per_request=each,
        shared_blocks=shared_blocks,
        needed_blocks=math.ceil((requests or running) * each - 1e-9) + shared_blocks,
        filled_slots=filled,
        filled_ratio=filled / (used_blocks * size) if used_blocks else 0.0,
        pool_filled_ratio=filled / slots,
    )


def _sure(room: int, each: float, deviation: float) -> int:
    """Most requests whose blocks fit with 99 % certainty: n * each + z * sqrt(n) * dev <= room."""
    spread = _SURE * deviation
    root = (-spread + math.sqrt(spread**2 + 4 * each * room)) / (2 * each)
    return int(root**2 + 1e-9)
