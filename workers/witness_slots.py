"""What a slot of the witness holds: a token, its position, and the mark of who computed it.

Whoever reads a block that was computed with another adapter reads other numbers.
"""

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

__all__ = ["TOKEN_BITS", "slot_entries"]

TOKEN_BITS = 32
"""Low bits of an entry, which are the token."""

_MARK_BITS = 12
"""High bits, which are the adapter's; positions have what lies between."""


def slot_entries(start: int, token_ids: Sequence[int], adapter: str = "") -> npt.NDArray[np.int64]:
    """What slots hold for tokens at positions from `start`, int64; `adapter` is an id."""
    positions = np.arange(start, start + len(token_ids), dtype=np.int64)
    tokens = np.array(token_ids, dtype=np.int64)
    return np.int64(_mark(adapter)) | (positions << TOKEN_BITS) | tokens


@cache
def _mark(adapter: str) -> int:
    """Nothing without an adapter."""
    if not adapter:
        return 0
    digest = int.from_bytes(blake2b(adapter.encode(), digest_size=8).digest(), "big")
    mark = digest % ((1 << _MARK_BITS) - 1) + 1
    return mark << (63 - _MARK_BITS)
