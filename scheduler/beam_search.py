"""A search for the likeliest answers to one prompt: which beams go on, with which tokens.

The rules are those of transformers' `generate(num_beams=..., do_sample=False)`. In each round every
beam tells its likeliest next tokens. Of all of them together, by the log probability of the whole
answer, the best that do not end go on; those among the best `width` that do end are answers, worth
that log probability divided by a power of their length. Sums are rounded to float32, as there.

Pure: knows neither blocks nor steps nor who computes for a beam. Units: tokens, natural logarithms.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from blockyard.scheduler.request import FinishReason
from blockyard.scheduler.sampling import SamplingParams, TokenLogprobs

__all__ = ["BeamSearch", "Branch", "Hypothesis"]


class Branch(NamedTuple):
    """A beam of the coming round: the place of the one that it continues, and its new token."""

    beam: int
    token_id: int


class Hypothesis(NamedTuple):
    """An answer that was found; `logprobs` are of its tokens."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    score: float
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class _Beam:
    """The newest token of a beam, which shares those before it with others."""

    before: "_Beam | None"
    token_id: int
    row: TokenLogprobs
    place: int
    """Among the likeliest of the row, from 0."""
    score: float
    """Log probability of all its tokens."""

    def back(self) -> "Iterator[_Beam]":
        """Its tokens from the newest on."""
        beam: _Beam | None = self
        while beam is not None:
            yield beam
            beam = beam.before


class BeamSearch:
    """One search.

    Args:
        sampling: how the request wants it.
        max_tokens: most tokens of an answer.
    """

    def __init__(self, sampling: SamplingParams, max_tokens: int) -> None:
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._width = sampling.beam_width
        self._length = 0
        # Nothing was produced yet: one beam without a token.
        self._beams: list[_Beam | None] = [None]
        self._finished: list[tuple[float, _Beam]] = []

    def advance(self, rows: Sequence[TokenLogprobs]) -> tuple[Branch, ...]:
        """Choose what follows, given the likeliest tokens after each beam, in order.

        Returns:
            The beams of the next round, the best first; none when the search has ended.
        """
        if len(rows) != len(self._beams):
            raise ValueError(f"{len(rows)} rows are given for {len(self._beams)} beams")
        self._length += 1
        going: list[tuple[int, _Beam]] = []
        ended: list[_Beam] = []
        for rank, (parent, beam) in enumerate(self._candidates(rows)):
            if self._reason_to_end(beam) is None:
                if len(going) < self._width:
                    going.append((parent, beam))
            elif rank < self._width:
                ended.append(beam)
        self._finish(ended)
        if self._is_over([beam for _, beam in going]):
            self._beams = []
            return ()
        self._beams = [beam for _, beam in going]
        return tuple(Branch(parent, beam.token_id) for parent, beam in going)

    def best(self) -> tuple[Hypothesis, ...]:
        """The answers found so far, the best first."""
        return tuple(self._hypothesis(score, beam) for score, beam in self._finished)

    def _candidates(self, rows: Sequence[TokenLogprobs]) -> list[tuple[int, _Beam]]:
        """Each beam with each of its likeliest tokens, the likeliest first.

        Of equals the one of the better beam, then the lower token.
        """
        banned: Iterable[int] = ()
        if self._length < self._sampling.min_tokens:
            banned = self._sampling.stop_token_ids
        found = [
            (parent, _Beam(before, token_id, row, place, _sum(before, logprob)))
            for parent, (before, row) in enumerate(zip(self._beams, rows, strict=True))
            for place, (token_id, logprob) in enumerate(
                zip(row.top_ids, row.top_logprobs, strict=True)
            )
            if token_id not in banned
        ]
        return sorted(found, key=lambda pair: (-pair[1].score, pair[0], pair[1].place))

    def _finish(self, beams: Iterable[_Beam]) -> None:
        """Keep the best of all that have ended."""
        if self._sampling.early_stopping and len(self._finished) == self._width:
            return
        found = [(self._worth(beam.score), beam) for beam in beams]
        both = sorted(self._finished + found, key=lambda pair: -pair[0])
        self._finished = both[: self._width]

    def _is_over(self, going: Sequence[_Beam]) -> bool:
        """Whether nothing better is to be expected of those that go on, the best first."""
        if not going:
            return True
        if len(self._finished) < self._width:
            return False
        return self._sampling.early_stopping or (
            self._worth(going[0].score) <= self._finished[-1][0]
        )

    def _worth(self, score: float) -> float:
        """What an answer of the present length is worth."""
        power = np.float32(self._length**self._sampling.length_penalty)
        return float(np.float32(score) / power)

    def _reason_to_end(self, beam: _Beam) -> FinishReason | None:
        if beam.token_id in self._sampling.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self._length == self._max_tokens else None

    def _hypothesis(self, score: float, beam: _Beam) -> Hypothesis:
        path = tuple(beam.back())[::-1]
        stopped = beam.token_id in self._sampling.stop_token_ids
        return Hypothesis(
            token_ids=tuple(one.token_id for one in path),
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            score=score,
            logprobs=tuple(map(self._told, path)),
        )

    def _told(self, beam: _Beam) -> TokenLogprobs:
        """What a client is told of one token."""
        row, most = beam.row, self._sampling.logprobs or 0
        # Equals share a rank, as where one token is sampled.
        logprob = row.top_logprobs[beam.place]
        rank = 1 + row.top_logprobs.index(logprob)
        return TokenLogprobs(logprob, rank, row.top_ids[:most], row.top_logprobs[:most])


def _sum(before: _Beam | None, logprob: float) -> float:
    return float(np.float32((before.score if before is not None else 0.0) + logprob))
