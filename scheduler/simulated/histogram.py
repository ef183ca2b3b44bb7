"""Quantiles of a stream of positive numbers in fixed memory, right to half a percent.

Buckets grow by one percent from one to the next. Knows no units: those of what is added.
"""

import math
from collections.abc import Sequence

__all__ = ["Histogram"]

_GROWTH = math.log(1.01)
_SMALLEST = 1e-9


class Histogram:
    """Counts by magnitude; from a nanosecond to a thousand years that is 4,500 buckets at most."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """`value` has occurred `count` times."""
        bucket = _bucket(value)
        self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.count += count
        self.total += value * count

    def add_rising(self, values: Sequence[float], count: int = 1) -> None:
        """Each of `values`, none of which is below the one before, has occurred `count` times."""
        first, last = _bucket(values[0]), _bucket(values[-1])
        if first != last:
            for value in values:
                self.add(value, count)
            return
        self._counts[first] = self._counts.get(first, 0) + count * len(values)
        self.count += count * len(values)
        self.total += sum(values) * count

    def quantile(self, share: float) -> float | None:
        """The value that `share` of all do not exceed; None when there are none."""
        if not self.count:
            return None
        wanted = max(1, math.ceil(share * self.count))
        passed = 0
        for bucket in sorted(self._counts):
            passed += self._counts[bucket]
            if passed >= wanted:
                return math.exp((bucket + 0.5) * _GROWTH)
        raise AssertionError(f"{passed} values are in buckets, {self.count} were counted")


def _bucket(value: float) -> int:
    return math.floor(math.log(max(value, _SMALLEST)) / _GROWTH)
