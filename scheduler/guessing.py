"""Guesses tokens that may come next, so that one step checks several: who guesses, and how many.

By prompt lookup: where a request's newest tokens stood before, what followed them there may follow
again, since answers quote their prompts and repeat themselves. Or by workers, who have a draft
model. A guess costs a place in a step and never changes an answer: what is sampled after it
decides. How many are made follows the share that came true. Units: tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from blockyard.scheduler.config import Speculation
from blockyard.scheduler.guess_rate import GuessRate
from blockyard.scheduler.plan import GUESS
from blockyard.scheduler.request import Request

__all__ = ["Guesser", "NgramGuesser", "OpenGuesser", "guesser_for"]

_PHRASES = (4, 3, 2)
"""Lengths of what is looked up, the most telling first."""

_MOST_INDEXED = 1024
"""Tokens taken into an index at once: a long prompt is read over several steps."""


class Guesser(Protocol):
    """Who guesses, and is told what came of it."""

    def guess(self, request: Request, most: int) -> Sequence[int]:
        """At most so many tokens that may follow the request's; empty for none.

        `GUESS` for those that workers are to make.
        """
        ...

    def learn(self, request: Request, num_guessed: int, num_true: int) -> None:
        """So many guesses were checked, and the first so many of them came true."""
        ...

    def keep(self, requests: Sequence[Request]) -> None:
        """Nobody but these will be asked about soon."""
        ...


@dataclass(slots=True)
class _Known:
    """What is known of one request: where phrases ended, and how guesses fared."""

    request: Request
    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    num_indexed: int = 0
    rate: GuessRate = field(default_factory=GuessRate)


class NgramGuesser:
    """Looks up what followed a request's newest tokens when they stood there last."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], _Known] = {}

    def guess(self, request: Request, most: int) -> Sequence[int]:
        """See `Guesser`; as many as their chance is worth."""
        known = self._of(request)
        self._index(known)
        count = min(most, known.rate.worthwhile())
        if count < 1:
            return ()
        tokens = request.tokens
        for length in _PHRASES:
            end = known.ends.get(tuple(tokens[-length:]))
            if end is not None:
                period = len(tokens) - end
                # What comes after the newest token is what comes after the phrase, once more.
                return [tokens[end + place % period] for place in range(count)]
        return ()

    def learn(self, request: Request, num_guessed: int, num_true: int) -> None:
        """See `Guesser`."""
        self._of(request).rate.learn(num_guessed, num_true)

    def keep(self, requests: Sequence[Request]) -> None:
        """See `Guesser`; who comes back is read anew."""
        if len(self._known) > 2 * len(requests):
            members = {request.member for request in requests}
            self._known = {m: known for m, known in self._known.items() if m in members}

    def _of(self, request: Request) -> _Known:
        known = self._known.get(request.member)
        if known is None or known.request is not request:
            known = self._known[request.member] = _Known(request)
        return known

    def _index(self, known: _Known) -> None:
        """Take in phrases that end before the newest token: nothing follows that one yet."""
        tokens, ends = known.request.tokens, known.ends
        begin = known.num_indexed
        known.num_indexed = min(len(tokens) - 1, begin + _MOST_INDEXED)
        for end in range(begin + 1, known.num_indexed + 1):
            for length in _PHRASES:
                if length <= end:
                    ends[tuple(tokens[end - length : end])] = end


class OpenGuesser:
    """Leaves guesses to the workers' draft model and says how many it makes."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, int], GuessRate] = {}

    def guess(self, request: Request, most: int) -> Sequence[int]:
        """See `Guesser`; as many as their chance is worth."""
        return (GUESS,) * min(most, self._of(request).worthwhile())

    def learn(self, request: Request, num_guessed: int, num_true: int) -> None:
        """See `Guesser`."""
        self._of(request).learn(num_guessed, num_true)

    def keep(self, requests: Sequence[Request]) -> None:
        """See `Guesser`; of who comes back nothing is known."""
        if len(self._rates) > 2 * len(requests):
            members = {request.member for request in requests}
            self._rates = {m: rate for m, rate in self._rates.items() if m in members}

    def _of(self, request: Request) -> GuessRate:
        return self._rates.setdefault(request.member, GuessRate())


def guesser_for(speculate: Speculation) -> Guesser | None:
    """Who guesses as configured; None for nobody."""
    match speculate:
        case Speculation.OFF:
            return None
        case Speculation.NGRAM:
            return NgramGuesser()
        case Speculation.DRAFT:
            return OpenGuesser()
