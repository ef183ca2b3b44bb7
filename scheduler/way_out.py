"""What becomes of a request that gives way, where whoever sees all groups has decided it. Values.

An engine takes victims by its own laws; this only says how one of them goes, should it be taken
for that request. Knows no costs.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Way", "WayOut"]


class Way(StrEnum):
    """Where the KV of a victim goes: to the host, nowhere, or with its request to another group."""

    SWAP = "swap"
    RECOMPUTE = "recompute"
    MOVE = "move"


@dataclass(frozen=True, slots=True)
class WayOut:
    """How one request goes if it is preempted for another.

    Attributes:
        request_id: the victim.
        way: what becomes of its blocks.
        taker: the group that goes on with it, when it moves.
    """

    request_id: str
    way: Way
    taker: str = ""
