"""The books of one group: where every block and every slot is, as frozen counts.

Counting happens in the owners; this module only gives the counts their names and proves that they
add up. Units: blocks, token slots, requests.
"""

from dataclasses import dataclass, fields, replace
from typing import TypeVar

__all__ = [
    "BlockCounts",
    "GroupLedger",
    "MoveCounts",
    "PreemptionCounts",
    "RequestCounts",
    "SlotCounts",
    "add_counts",
]


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Every block is in exactly one of these states."""

    total: int
    free: int
    cached: int
    active: int
    fenced: int


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """Every slot of an active block is in exactly one of these states."""

    filled: int
    promised: int
    empty_tail: int


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Requests by state."""

    running: int
    waiting: int
    parked: int


@dataclass(frozen=True, slots=True)
class PreemptionCounts:
    """What preemptions were, and what they cost.

    `swapped`, `recomputed`, `held` (a place alone was wanted) and `moved` (to another group) count
    preemptions by what became of the blocks taken first; in `ordered` of them the central scheduler
    has decided that. Estimates were made at the decision; the seconds beside them are those of
    copies, and the share of steps that went to tokens computed again.
    """

    swapped: int = 0
    recomputed: int = 0
    held: int = 0
    blocks_out: int = 0
    blocks_in: int = 0
    swap_estimated_seconds: float = 0.0
    swap_seconds: float = 0.0
    recompute_estimated_seconds: float = 0.0
    recompute_seconds: float = 0.0
    moved: int = 0
    ordered: int = 0


@dataclass(frozen=True, slots=True)
class MoveCounts:
    """Requests that came from another group where they had begun, and KV that went over the wire.

    Attributes:
        brought: requests that came with blocks, some or all of those that they had.
        recomputed: those that came without: that was cheaper, or there was no other way.
        cut_short: of all these, those whose transfer ended before all was there.
        blocks_out, blocks_in: blocks that were sent to other groups, and that came.
        tokens_in: computed tokens in the blocks that came.
        bytes_out, bytes_in: over all ranks.
        estimated_seconds, seconds: what transfers that were begun were to take, and took.
    """

    brought: int = 0
    recomputed: int = 0
    cut_short: int = 0
    blocks_out: int = 0
    blocks_in: int = 0
    tokens_in: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    estimated_seconds: float = 0.0
    seconds: float = 0.0


Counts = TypeVar("Counts", bound=PreemptionCounts | MoveCounts)


def add_counts(one: Counts, other: Counts) -> Counts:
    """What both have counted."""
    added = {f.name: getattr(one, f.name) + getattr(other, f.name) for f in fields(one)}
    return replace(one, **added)


@dataclass(frozen=True, slots=True)
class GroupLedger:
    """One group's books at one moment, between two actions of its scheduler."""

    blocks: BlockCounts
    slots: SlotCounts
    requests: RequestCounts
    block_size: int
    step: int
    preemptions: int
    stalled_steps: int
    """Plans that computed nothing while work waited; law 4 says this stays 0."""
    logical_tokens: int = 0
    """Computed tokens that requests hold; above `slots.filled` by what they share."""
    prompt_tokens: int = 0
    """Tokens of requests at their first admission, and below how many of them were found."""
    prefix_hit_tokens: int = 0
    recomputed_tokens: int = 0
    """Tokens computed again after preemptions."""
    merged_blocks: int = 0
    """Blocks given up for an equal one that somebody else had computed meanwhile."""
    copied_blocks: int = 0
    """Blocks copied because one of those who shared them went on writing."""
    host_blocks: BlockCounts = BlockCounts(0, 0, 0, 0, 0)
    preempted: PreemptionCounts = PreemptionCounts()
    queued_tokens: int = 0
    """Known tokens of requests without a place."""
    prefill_tokens_per_second: float = 0.0
    """As measured so far; 0: not yet."""
    guessed_tokens: int = 0
    """Next tokens that were guessed and checked, and below how many of them were right."""
    right_guesses: int = 0
    moves: MoveCounts = MoveCounts()
    wire_bytes_per_second: float = 0.0
    """From other groups to each rank, as measured last; 0: not yet."""

    def check(self) -> None:
        """Prove conservation: states add up to the pool, slots to the active blocks."""
        blocks, slots = self.blocks, self.slots
        for pool in (blocks, self.host_blocks):
            states = pool.free + pool.cached + pool.active + pool.fenced
            if states != pool.total:
                raise AssertionError(f"block states add up to {states}, the pool has {pool.total}")
        held = slots.filled + slots.promised + slots.empty_tail
        if held != blocks.active * self.block_size:
            raise AssertionError(
                f"slots add up to {held}, active blocks hold {blocks.active * self.block_size}"
            )
