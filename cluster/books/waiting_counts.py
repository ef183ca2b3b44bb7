"""The central scheduler's books of requests that asked it for a group. Units: requests, seconds."""

from dataclasses import dataclass

__all__ = ["NOBODY_WAITS", "WaitingCounts"]


@dataclass(frozen=True, slots=True)
class WaitingCounts:
    """Who waits for a group while all are full, and what became of those who asked for one.

    Attributes:
        queued, queued_tokens: that wait now, and tokens known of them.
        oldest_seconds: since the one that waits longest came.
        bound: requests that were given a group; `bound_late` after they had waited.
        waited_seconds: of those together.
        shed: refused because too many waited.
        too_late: refused because their deadline could not be met any more.
    """

    queued: int = 0
    queued_tokens: int = 0
    oldest_seconds: float = 0.0
    bound: int = 0
    bound_late: int = 0
    waited_seconds: float = 0.0
    shed: int = 0
    too_late: int = 0


NOBODY_WAITS = WaitingCounts()
