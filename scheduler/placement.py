"""Which group a request is bound to. Pure: decides from the books it is shown.

Knows nothing of processes. Units: blocks, tokens, requests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.standing import Standing

__all__ = ["Candidate", "choose_group", "delay"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A group as the central scheduler sees it.

    `bound_tokens` are prompt tokens bound to it since its books were last heard of, so that a
    burst between two reports does not all land on one group. `known_blocks` are leading blocks of
    the request at hand that it need not compute, for they can be found there. `standing` tells of
    one that is full. `places` are those of a step, 0 where that is not known; `bound_places` of
    them, and `bound_waiting` requests that find none, were bound since those books, too.
    """

    group_id: str
    ledger: GroupLedger
    bound_tokens: int = 0
    known_blocks: int = 0
    standing: Standing | None = None
    places: int = 0
    bound_places: int = 0
    bound_waiting: int = 0

    @property
    def num_waiting(self) -> int:
        """Requests without a place there, those that were bound since included."""
        requests = self.ledger.requests
        return requests.waiting + requests.parked + self.bound_waiting

    @property
    def places_left(self) -> float:
        """Places that can be had now, as far as that is known."""
        if not self.places:
            return math.inf
        return self.places - self.ledger.requests.running - self.bound_places

    @property
    def free_blocks(self) -> int:
        """Blocks that can be had now, less what was bound since."""
        blocks = self.ledger.blocks
        return blocks.free + blocks.cached - -(-self.bound_tokens // self.ledger.block_size)


def choose_group(candidates: Sequence[Candidate], prompt_tokens: int) -> str | None:
    """The group that can start a request of `prompt_tokens` soonest; None without candidates."""
    if not candidates:
        return None
    return min(candidates, key=lambda candidate: delay(candidate, prompt_tokens)).group_id


def delay(candidate: Candidate, prompt_tokens: int, places: int = 0) -> tuple[int, int, int, str]:
    """How long a group would let a request of so many tokens and places wait: the least is best.

    Groups that have the blocks and no queue come first, then the shortest queue, then the most
    blocks left when it has come: each known one is one that need be neither computed nor taken, so
    the longest prefix wins unless its group holds more than that for others. The id breaks ties so
    that the choice is the same everywhere.
    """
    ledger = candidate.ledger
    free = candidate.free_blocks + candidate.known_blocks
    short = prompt_tokens > free * ledger.block_size or places > candidate.places_left
    return candidate.num_waiting + short, -free, ledger.requests.running, candidate.group_id
