"""Guesses what a witness will answer, now and then wrongly: for tests of steps with guesses.

The same seed gives the same mistakes. Units: tokens.
"""

import random
from collections.abc import Sequence
from typing import Any

from blockyard.workers.fake import witness_next_token

__all__ = ["WitnessGuesser"]

_CHANCE_OF_MISTAKE = 0.2


class WitnessGuesser:
    """Implements the scheduler's `Guesser`."""

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._draw = random.Random(seed)

    def guess(self, request: Any, most: int) -> Sequence[int]:
        """Any number of tokens up to `most`; behind the first mistake they go on from it."""
        tokens = list(request.tokens)
        known = len(tokens)
        for _ in range(self._draw.randint(0, most)):
            token = witness_next_token(tokens, self._vocab_size, request.sampling.choice)
            mistaken = self._draw.random() < _CHANCE_OF_MISTAKE
            tokens.append((token + mistaken) % self._vocab_size)
        return tokens[known:]

    def learn(self, request: Any, num_guessed: int, num_true: int) -> None:
        """It knows already."""

    def keep(self, requests: Sequence[Any]) -> None:
        """It remembers nobody."""
