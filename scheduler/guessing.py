"""Guesses tokens that may come next, so that one step checks several: prompt lookup.

Where a request's newest tokens stood before, what followed them there may follow again: answers
quote their prompts and repeat themselves. A guess costs a place in a step and never changes an
answer: what is sampled after it decides. How many are made follows the share that came true.
Units: tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from blockyard.scheduler.request import Request

__all__ = ["MOST_GUESSES", "Guesser", "NgramGuesser"]

MOST_GUESSES = 8
"""For one request in one step."""

_PHRASES = (4, 3, 2)
"""Lengths of what is looked up, the most telling first."""

_MOST_INDEXED = 1024
"""Tokens taken into an index at once: a long prompt is read over several steps."""

_FIRST_SHARE = 0.7
"""What is believed of a request before it has shown how well it can be guessed."""

_MEMORY = 0.15
"""Weight of the newest guess in the share that came true."""

_LEAST_CHANCE = 0.4
"""A guess is made while it and those before it come true with this chance together."""

_STEPS_BETWEEN_TRIES = 16
"""Where guesses failed, one is tried again after so many steps."""


class Guesser(Protocol):
    """Who guesses, and is told what came of it."""

    def guess(self, request: Request, most: int) -> Sequence[int]:
        """At most so many tokens that may follow the request's; empty for none."""
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
    share: float = _FIRST_SHARE
    idle_steps: int = 0


class NgramGuesser:
    """Looks up what followed a request's newest tokens when they stood there last."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], _Known] = {}

    def guess(self, request: Request, most: int) -> Sequence[int]:
        """See `Guesser`; as many as their chance is worth."""
        known = self._of(request)
        self._index(known)
        count = min(most, self._worthwhile(known))
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
        """See `Guesser`. Guesses behind the first wrong one say nothing."""
        known = self._of(request)
        for place in range(min(num_true + 1, num_guessed)):
            known.share += _MEMORY * ((place < num_true) - known.share)

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

    def _worthwhile(self, known: _Known) -> int:
        """How many guesses in a row come true with chance enough."""
        if known.share**MOST_GUESSES >= _LEAST_CHANCE:
            return MOST_GUESSES
        count = int(math.log(_LEAST_CHANCE) / math.log(known.share)) if known.share > 0 else 0
        if count:
            return count
        known.idle_steps = (known.idle_steps + 1) % _STEPS_BETWEEN_TRIES
        return int(known.idle_steps == 0)
