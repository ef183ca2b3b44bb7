"""What it costs to bring a request's KV over from another group, or to compute it again. Pure.

A wire between two groups is known by what it has carried: how long it takes until the first byte is
there, and bytes a second on one rank, while all ranks carry side by side. What is not known yet is
worth a try, which ends as soon as it has shown that it is not. Units: seconds, bytes, blocks.
"""

import math
from dataclasses import dataclass

from blockyard.scheduler.cost_model import CostModel

__all__ = ["FORGET_SECONDS", "LinkMeter", "LinkModel", "bring_seconds", "is_worth_bringing"]

FORGET_SECONDS = 60.0
"""What was measured so long ago says nothing any more: the wire is tried again."""

_KEPT = 0.5
"""Of what was known, when more is carried."""


@dataclass(frozen=True, slots=True)
class LinkModel:
    """One wire at one moment. A rate of 0 is not measured: what it would price costs nothing."""

    delay_seconds: float = 0.0
    bytes_per_second: float = 0.0

    def seconds(self, num_bytes: float) -> float:
        """Until so many bytes are there that were not asked for yet."""
        return self.delay_seconds + (
            num_bytes / self.bytes_per_second if self.bytes_per_second else 0.0
        )


class LinkMeter:
    """Learns one wire's delay and rate; the newest counts most."""

    def __init__(self) -> None:
        self._bytes = 0.0
        self._seconds = 0.0
        self._delay: float | None = None
        self._observed_at = -math.inf

    def observe(self, num_bytes: int, seconds: float, now: float) -> None:
        """So many bytes came on each rank within so long, not counting the wait for the first."""
        if num_bytes > 0 and 0.0 < seconds < math.inf:
            self._bytes = self._bytes * _KEPT + num_bytes
            self._seconds = self._seconds * _KEPT + seconds
            self._observed_at = now

    def observe_delay(self, seconds: float) -> None:
        """The first byte came after so long."""
        known = seconds if self._delay is None else self._delay
        self._delay = known * _KEPT + seconds * (1 - _KEPT)

    def model(self, now: float) -> LinkModel:
        """As it is known now."""
        if now - self._observed_at > FORGET_SECONDS or not self._seconds:
            return LinkModel(self._delay or 0.0)
        return LinkModel(self._delay or 0.0, self._bytes / self._seconds)


def bring_seconds(rates: CostModel, link: LinkModel, num_blocks: int) -> float:
    """Until blocks that are at another group are on the device here: over the wire, then up.

    A copy up must end before the first token that reads it, so it is paid in full; at a rate that
    is not measured it costs nothing, as there is nothing to compare it by.
    """
    num_bytes = num_blocks * rates.block_bytes
    up = num_bytes / rates.link_bytes_per_second if rates.link_bytes_per_second else 0.0
    return link.seconds(num_bytes) + up


def is_worth_bringing(rates: CostModel, link: LinkModel, num_blocks: int, num_tokens: int) -> bool:
    """Whether blocks are sooner here than the tokens in them are computed again.

    Args:
        rates: of the group that goes on with the request.
        link: the wire from where the blocks are.
        num_blocks: that must come.
        num_tokens: computed tokens in them.
    """
    if num_tokens < 1:
        return False
    return bring_seconds(rates, link, num_blocks) < rates.recompute_seconds(num_tokens)
