"""A group's prefix index as seen from elsewhere: which keys could be hit there.

Follows the events of `PrefixIndex`. Keys are chained and leaves leave first, so a key that is here
has all its parents here: how far a prompt is known is found by halves. Units: blocks.
"""

from collections.abc import Iterable, Sequence

__all__ = ["PrefixView"]


class PrefixView:
    """The keys of one index; begins with those of a snapshot."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._keys = set(keys)

    def __len__(self) -> int:
        """Blocks that could be hit."""
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        """Whether a block with this key could be hit."""
        return key in self._keys

    def apply(self, removed: Iterable[bytes], stored: Iterable[bytes]) -> None:
        """What has changed: away first, then added. Saying a thing twice changes nothing."""
        self._keys.difference_update(removed)
        self._keys.update(stored)

    def num_known(self, keys: Sequence[bytes]) -> int:
        """How many of a prompt's blocks, from the first on, could be hit."""
        if not keys or keys[0] not in self._keys:
            return 0  # as with most groups and most prompts
        known, unknown = 1, len(keys)
        while known < unknown:
            middle = (known + unknown) // 2
            if keys[middle] in self._keys:
                known = middle + 1
            else:
                unknown = middle
        return known
