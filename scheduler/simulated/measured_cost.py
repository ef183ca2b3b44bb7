"""Seconds of steps on a device that was measured: fitted to steps that really ran.

A step costs by its tokens (a broken line through measured counts), by its rows, by the context
they read and by what prefill computes against it. Knows one model on one device. Units: tokens,
rows, bytes, seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["MeasuredCost", "StepSample", "fit_cost"]

_Vector = npt.NDArray[np.float64]

_ROUNDS = 5
"""How often a fit is made anew with weights by what the one before expects; it settles soon."""

_LEAST_SHARE = 0.01
"""No step is expected to take less than this share of the mean one, or it would weigh too much."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step that ran, by what its cost depends on.

    Attributes:
        tokens: computed in all rows.
        rows: how many there were.
        read: tokens of context that all rows read together, computed ones among them.
        attended: pairs of a computed token and one before it.
        seconds: how long it took.
    """

    tokens: int
    rows: int
    read: int
    attended: float
    seconds: float

    @classmethod
    def of(cls, starts: Sequence[int], counts: Sequence[int], seconds: float) -> "StepSample":
        """Row `i` computed `counts[i]` tokens from position `starts[i]` on."""
        tokens = sum(counts)
        return cls(tokens, len(counts), sum(starts) + tokens, _attended(starts, counts), seconds)


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """What steps cost.

    Attributes:
        token_counts, token_seconds: corners of the line through tokens; ascending counts.
        row_seconds: for each row more.
        read_seconds: for each token of context that a row reads.
        attend_seconds: for each pair of a computed token and one before it.
        block_bytes: of one block on one rank.
        link_bytes_per_second: to host memory and back.
    """

    token_counts: tuple[int, ...]
    token_seconds: tuple[float, ...]
    row_seconds: float
    read_seconds: float
    attend_seconds: float
    block_bytes: int
    link_bytes_per_second: float

    def __post_init__(self) -> None:
        """Refuse lines without direction."""
        counts = self.token_counts
        if len(counts) < 2 or len(counts) != len(self.token_seconds):
            raise ValueError("give at least two token_counts, and as many token_seconds")
        if any(a >= b for a, b in pairwise(counts)) or counts[0] < 1:
            raise ValueError("token_counts must ascend from 1 or more")

    def compute_seconds(self, starts: Sequence[int], counts: Sequence[int]) -> float:
        """A step whose rows compute `counts[i]` tokens from position `starts[i]` on."""
        rows, tokens = len(counts), sum(counts)
        if not rows:
            return 0.0
        read = sum(starts) + tokens
        if tokens == rows:
            return self.decode_seconds(rows, read)
        return self._seconds(tokens, rows, read, _attended(starts, counts))

    def decode_seconds(self, num_rows: int, context_tokens: int) -> float:
        """A step of one token a row, whose rows read `context_tokens` tokens in all."""
        return self._seconds(num_rows, num_rows, context_tokens, context_tokens - num_rows / 2)

    def decode_run(self, num_rows: int, context_tokens: int, num_steps: int) -> list[float]:
        """`decode_seconds` of steps that follow one another: each reads a token a row more."""
        end = context_tokens + num_rows * num_steps
        contexts = range(context_tokens, end, num_rows)
        return [self.decode_seconds(num_rows, context) for context in contexts]

    def copy_seconds(self, num_blocks: int) -> float:
        """Blocks moved to host memory or back."""
        return num_blocks * self.block_bytes / self.link_bytes_per_second

    def _seconds(self, tokens: int, rows: int, read: float, attended: float) -> float:
        return (
            self._line(tokens)
            + self.row_seconds * rows
            + self.read_seconds * read
            + self.attend_seconds * attended
        )

    def _line(self, tokens: int) -> float:
        counts, seconds = self.token_counts, self.token_seconds
        if tokens <= counts[0]:
            return seconds[0]
        last = len(counts) - 1
        corner = next((i for i in range(1, last) if tokens <= counts[i]), last)
        slope = (seconds[corner] - seconds[corner - 1]) / (counts[corner] - counts[corner - 1])
        return seconds[corner] + slope * (tokens - counts[corner])


def fit_cost(
    samples: Sequence[StepSample], block_bytes: int, link_bytes_per_second: float
) -> MeasuredCost:
    """The costs that come nearest to all samples, which take as long in all as they did.

    A step's time strays the more the longer it is, so each counts by how long it is expected to
    take. What it took instead would not do: steps that a busy machine held up would count least,
    and all others would come out too short.

    Raises:
        ValueError: too few different steps to tell anything.
    """
    tokens = np.array([sample.tokens for sample in samples], dtype=np.float64)
    corners = _corners(tokens) if len(samples) else tokens
    if len(corners) < 2:
        raise ValueError("the samples have steps of one size only; measure others too")
    line = np.array([_hats(count, corners) for count in tokens])
    others = np.array(
        [(sample.rows, sample.read, sample.attended) for sample in samples], dtype=np.float64
    )
    features = np.hstack([line, others])
    seconds = np.array([sample.seconds for sample in samples])
    expected = np.full(len(samples), seconds.mean())
    for _ in range(_ROUNDS):
        weights = 1 / np.sqrt(expected)
        found = _least_squares(features * weights[:, None], seconds * weights)
        expected = np.maximum(features @ found, _LEAST_SHARE * seconds.mean())
    size = len(corners)
    return MeasuredCost(
        token_counts=tuple(int(corner) for corner in corners),
        token_seconds=tuple(float(value) for value in found[:size]),
        row_seconds=float(found[size]),
        read_seconds=float(found[size + 1]),
        attend_seconds=float(found[size + 2]),
        block_bytes=block_bytes,
        link_bytes_per_second=link_bytes_per_second,
    )


def _attended(starts: Sequence[int], counts: Sequence[int]) -> float:
    return sum(count * (start + count / 2) for start, count in zip(starts, counts, strict=True))


def _corners(tokens: _Vector) -> _Vector:
    """Powers of two up to the largest step, and that one, as far as steps come near them."""
    largest = tokens.max()
    wanted = [float(2**power) for power in range(int(np.log2(largest)) + 1)] + [float(largest)]
    near = [tokens[np.argmin(np.abs(tokens - count))] for count in wanted]
    corners: _Vector = np.unique(np.array(near))
    return corners


def _hats(count: float, corners: _Vector) -> _Vector:
    """How much of each corner's height a point of the line has."""
    weights: _Vector = np.array(
        [np.interp(count, corners, row) for row in np.eye(len(corners))], dtype=np.float64
    )
    return weights


def _least_squares(features: _Vector, target: _Vector) -> _Vector:
    """Least squares of which no part is negative: parts that would be are left out, worst first."""
    used = list(range(features.shape[1]))
    found: _Vector = np.zeros(features.shape[1])
    while used:
        part, *_ = np.linalg.lstsq(features[:, used], target, rcond=None)
        if part.min() >= 0:
            found[used] = part
            return found
        del used[int(np.argmin(part))]
    return found
