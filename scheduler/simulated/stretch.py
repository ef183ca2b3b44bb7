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

    def span(self, first: int, last: int) -> tuple[float, float]:
        """Begin and end of steps `first` up to `last`."""
        return self.ends[first - 1] if first else self.began, self.ends[last - 1]

    def means(
        self, first: int, last: int, num_rows: int, block_size: int, free: float
    ) -> tuple[float, float, float]:
        """What steps `first` up to `last` had taken, on average over their time.

        Returns:
            Slots filled since the stretch began, slots taken in blocks, and those of them that
            held nothing before: of these there were `free`, and they go first.
        """
        filled = taken = empty = 0.0
        for index in range(first, last):
            seconds = self.seconds[index]
            slots = self.blocks_taken[index + 1] * block_size
            filled += seconds * num_rows * index
            taken += seconds * slots
            empty += seconds * min(slots, free)
        began, ended = self.span(first, last)
        seconds = ended - began
        return filled / seconds, taken / seconds, empty / seconds
