"""How many guesses of one request's next tokens are worth a step's time.

As many as come true together with chance enough, by the share that came true so far; where that is
none, one is tried now and then. Knows no tokens. Units: tokens.
"""

import math
from dataclasses import dataclass

__all__ = ["MOST_GUESSES", "GuessRate"]

MOST_GUESSES = 8
"""For one request in one step."""

_FIRST_SHARE = 0.7
"""What is believed of a request before it has shown how well it can be guessed."""

_MEMORY = 0.15
"""Weight of the newest guess in the share that came true."""

_LEAST_CHANCE = 0.4
"""A guess is made while it and those before it come true with this chance together."""

_STEPS_BETWEEN_TRIES = 16
"""Where guesses failed, one is tried again after so many steps."""


@dataclass(slots=True)
class GuessRate:
    """How guesses of one request have fared."""

    _share: float = _FIRST_SHARE
    _idle_steps: int = 0

    def learn(self, num_guessed: int, num_true: int) -> None:
        """So many guesses were checked in a row, and the first so many of them came true.

        Guesses behind the first wrong one say nothing.
        """
        for place in range(min(num_true + 1, num_guessed)):
            self._share += _MEMORY * ((place < num_true) - self._share)

    def worthwhile(self) -> int:
        """How many guesses in a row come true with chance enough; call it once a step."""
        if self._share**MOST_GUESSES >= _LEAST_CHANCE:
            return MOST_GUESSES
        count = int(math.log(_LEAST_CHANCE) / math.log(self._share)) if self._share > 0 else 0
        if count:
            return count
        self._idle_steps = (self._idle_steps + 1) % _STEPS_BETWEEN_TRIES
        return int(self._idle_steps == 0)
