"""Where slots were over time: means over equal intervals, in fixed memory however long it gets.

Takes integrals, so what changes between two points counts for exactly as long as it lasted. When
the intervals no longer reach far enough, neighbours are merged. Units: slots, seconds.
"""

from typing import NamedTuple

__all__ = ["MemoryTimeline", "SlotState"]

_FIRST_WIDTH = 1 / 16


class SlotState(NamedTuple):
    """Every slot of a pool is in one of these states; or slot-seconds, when multiplied by time.

    Attributes:
        filled: holds a token that a request needs.
        reserved: promised to a request for tokens to come (in blocks: by the step in flight).
        internal: in an allocated unit, but not for its owner's use (in blocks: the empty tail).
        cached: free, and kept for its content until needed.
        external: free, but outside the largest hole, where that matters.
        free: the rest.
        running: requests that hold memory. No slots, but counted alike.
    """

    filled: float
    reserved: float
    internal: float
    cached: float
    external: float
    free: float
    running: float

    def times(self, seconds: float) -> "SlotState":
        """This state held for so long."""
        return SlotState(*(value * seconds for value in self))


class MemoryTimeline:
    """Sums over all groups that add to it, each for itself and in any order."""

    def __init__(self, num_intervals: int = 1024) -> None:
        if num_intervals < 2 or num_intervals % 2:
            raise ValueError(f"num_intervals is {num_intervals}; it must be even and at least 2")
        self.width_seconds = _FIRST_WIDTH
        self._num_intervals = num_intervals
        self._sums = [[0.0] * len(SlotState._fields) for _ in range(num_intervals)]

    def add(self, begin: float, end: float, integral: SlotState) -> None:
        """Between two moments this was the integral over time of what one group held."""
        while end > self.width_seconds * self._num_intervals:
            self._merge()
        width = self.width_seconds
        first = min(int(begin / width), self._num_intervals - 1)
        if end <= (first + 1) * width:
            sums = self._sums[first]
            for field, value in enumerate(integral):
                sums[field] += value
            return
        for index in range(first, min(int(end / width), self._num_intervals - 1) + 1):
            inside = min(end, (index + 1) * width) - max(begin, index * width)
            share = max(0.0, inside) / (end - begin)
            sums = self._sums[index]
            for field, value in enumerate(integral):
                sums[field] += value * share

    def means(self, until: float) -> list[tuple[float, SlotState]]:
        """The middle of each interval that ends by `until`, and what was held in it on average."""
        width = self.width_seconds
        return [
            ((index + 0.5) * width, SlotState(*(value / width for value in sums)))
            for index, sums in enumerate(self._sums[: int(until / width)])
        ]

    def _merge(self) -> None:
        old = self._sums
        self._sums = [
            [a + b for a, b in zip(old[index], old[index + 1], strict=True)]
            for index in range(0, len(old), 2)
        ]
        self._sums += [[0.0] * len(SlotState._fields) for _ in range(len(old) // 2)]
        self.width_seconds *= 2
