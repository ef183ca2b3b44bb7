"""Steady steps of one group that lie ahead: when each ends, and the blocks they take.

Units: simulated seconds, blocks, steps.
"""

from bisect import bisect_right
from itertools import accumulate

__all__ = ["Stretch"]


class Stretch:
    """Steady steps that lie ahead and are not done yet: they may be cut short."""

    __slots__ = ("began", "blocks_taken", "ends", "seconds")

    def __init__(self, began: float, seconds: list[float], blocks_taken: list[int]) -> None:
        self.began = began
        self.seconds = seconds
        self.ends = list(accumulate(seconds, initial=began))[1:]
        self.blocks_taken = blocks_taken

    def done_at(self, now: float) -> int:
        """Steps that have ended at a moment."""
        return bisect_right(self.ends, now)

    def shorten(self, count: int) -> bool:
        """Leave only the first `count` steps; False when there were no more anyway."""
        if count >= len(self.ends):
            return False
        del self.ends[count:], self.seconds[count:]
        return True
