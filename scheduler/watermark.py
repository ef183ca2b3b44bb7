"""How many blocks stay free at an admission, so that those who run find room to grow.

Running requests grow steadily; blocks come back in lumps, when one ends. On the long run admission
keeps both in balance, but endings come at random: where `n` are due, about the square root of `n`
may fail to come, and each of these leaves the growth between two endings uncovered. That much is
kept free, by half. Less leads to preemptions, more leaves memory idle: in simulations of pools from
1,500 to 47,000 blocks, short and long answers, half loses least. Knows rates only. Units: blocks,
requests.
"""

import math

__all__ = ["GrowthWatermark"]

_ENDINGS_REMEMBERED = 64
_FEWEST_ENDINGS = 4
"""Before these many have been seen their rate says nothing."""

_SHARE_OF_SPREAD = 0.5

_UNMEASURED_PART = 32
"""Until rates are known, at most one block in so many stays free."""

_LARGEST_PART = 8
"""At most one block in so many stays free."""


class GrowthWatermark:
    """Learns how much running requests grow between two endings."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._grown = 0.0
        self._ended = 0.0

    @property
    def growth_per_ending(self) -> float | None:
        """Blocks that all running requests together grow by between two endings; None: unknown."""
        return self._grown / self._ended if self._ended >= _FEWEST_ENDINGS else None

    def observe(self, grown_blocks: int, endings: int) -> None:
        """Since the last call running requests took blocks for new tokens, and some ended."""
        self._grown += grown_blocks
        self._ended += endings
        if self._ended > _ENDINGS_REMEMBERED:
            fade = _ENDINGS_REMEMBERED / self._ended
            self._grown *= fade
            self._ended *= fade

    def blocks(self, num_running: int) -> int:
        """Blocks to keep free while `num_running` requests run; at most an eighth of the pool.

        Until rates are known: one for each running request, within a thirty-second of the pool.
        """
        growth = self.growth_per_ending
        if growth is None:
            return min(num_running, 1 + self._num_blocks // _UNMEASURED_PART)
        spread = _SHARE_OF_SPREAD * growth * math.sqrt(num_running)
        return min(math.ceil(spread), 1 + self._num_blocks // _LARGEST_PART)
