"""What a witness answers, as a hash of the slots that it reads: tokens, and how likely they are.

One wrong, missing or overwritten entry changes the answer. Knows no blocks. Units: tokens.
"""

import numpy as np
import numpy.typing as npt

from blockyard.scheduler.sampling import TokenLogprobs

__all__ = ["likeliest", "next_token"]

_WORD = 2**64 - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)


def next_token(entries: npt.NDArray[np.int64], vocab_size: int, choice: int) -> int:
    """A token from a digest of all entries and the choice."""
    # The sum of the mixed entries is itself even enough; the high half avoids low-bit patterns.
    return ((_digest(entries) >> 32) + choice) % vocab_size


def likeliest(entries: npt.NDArray[np.int64], vocab_size: int, most: int) -> TokenLogprobs:
    """Tokens from the next one on, each less likely than the one before by the same step."""
    digest = _digest(entries)
    first, step = (digest & 63) / 64 + 0.25, (digest >> 6 & 127) / 128 + 0.01
    first_token = next_token(entries, vocab_size, 0)
    ids = tuple((first_token + place) % vocab_size for place in range(min(most, vocab_size)))
    logprobs = tuple(float(np.float32(-first - step * place)) for place in range(len(ids)))
    return TokenLogprobs(logprobs[0], 1, ids, logprobs)


def _digest(entries: npt.NDArray[np.int64]) -> int:
    """All entries mixed, each with its place in the row (splitmix64)."""
    places = np.arange(1, len(entries) + 1, dtype=np.uint64)
    word = entries.astype(np.uint64) + places * _GOLDEN
    word = (word ^ (word >> np.uint64(30))) * _FIRST_FACTOR
    word = (word ^ (word >> np.uint64(27))) * _SECOND_FACTOR
    word ^= word >> np.uint64(31)
    return int(word.sum(dtype=np.uint64)) & _WORD
