"""How loaded groups are, as far as their number depends on it. Values, and who would go first.

Units: blocks, tokens, requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from blockyard.scheduler.ledger import GroupLedger

__all__ = ["ClusterLoad", "GroupLoad", "choose_retiring"]


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """One group that takes requests, as far as scaling asks.

    Attributes:
        total_blocks, free_blocks: of its pool; kept blocks count as free.
        places: most requests in one of its steps.
        requests: running, waiting and parked.
        queued_tokens: known tokens of those without a place.
        prefill_tokens_per_second: as measured; 0: not yet.
        admitted_tokens: prompt tokens let in since it came up, less those found in its index.
    """

    group_id: str
    total_blocks: int
    free_blocks: int
    block_size: int
    places: int
    requests: int
    queued_tokens: int
    prefill_tokens_per_second: float
    admitted_tokens: int

    @classmethod
    def of(cls, group_id: str, ledger: GroupLedger, places: int) -> "GroupLoad":
        """From a group's books; `places` is its limit of running requests."""
        requests = ledger.requests
        return cls(
            group_id=group_id,
            total_blocks=ledger.blocks.total,
            free_blocks=ledger.blocks.free + ledger.blocks.cached,
            block_size=ledger.block_size,
            places=places,
            requests=requests.running + requests.waiting + requests.parked,
            queued_tokens=ledger.queued_tokens,
            prefill_tokens_per_second=ledger.prefill_tokens_per_second,
            admitted_tokens=ledger.prompt_tokens - ledger.prefix_hit_tokens,
        )

    @property
    def wanted_blocks(self) -> int:
        """Blocks held, and those that its queue wants."""
        held = self.total_blocks - self.free_blocks
        return held + -(-self.queued_tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """All groups that are up and not draining, how many start, and who waits outside.

    Attributes:
        groups: those that are up.
        starting: more that are on their way.
        unbound_requests: that no group could be found for, because none is up.
        queued_requests, queued_tokens: that wait for the first of them all to have room, and tokens
            known of those.
        resting: all of them sleep, or are becoming something else.
    """

    groups: tuple[GroupLoad, ...]
    starting: int = 0
    unbound_requests: int = 0
    queued_requests: int = 0
    queued_tokens: int = 0
    resting: bool = False


def choose_retiring(groups: Sequence[GroupLoad], count: int) -> tuple[str, ...]:
    """Which groups go: those with the least to finish, by requests, then blocks, then id."""
    order = sorted(
        groups,
        key=lambda group: (
            group.requests,
            group.total_blocks - group.free_blocks,
            group.group_id,
        ),
    )
    return tuple(group.group_id for group in order[:count])
