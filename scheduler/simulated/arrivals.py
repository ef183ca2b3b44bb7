"""Requests as a replay sees them: when they come, how long they are, what they begin with.

Makes up token ids that are equal exactly where recorded prompts were. Knows nothing of files or
schedulers. Units: seconds, tokens.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from blockyard.scheduler.block_keys import NO_EXTRAS, PromptKeys

__all__ = ["PIECE_TOKENS", "Arrival", "PromptWriter", "speed_up"]

PIECE_TOKENS = 512
"""Tokens of a prompt that one prefix id stands for, unless a trace tells otherwise."""

_OWN_TOKENS = 2**31
"""Token ids from here on are one request's own."""


class Arrival(NamedTuple):
    """One request of a trace. `number` is unique; equal prefix ids at equal places, equal text.

    Each prefix id stands for the next `piece_tokens` tokens of the prompt.
    """

    number: int
    seconds: float
    prompt_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()
    piece_tokens: int = PIECE_TOKENS


class PromptWriter:
    """Writes prompts and answers. What no prefix id stands for belongs to one request alone.

    Remembers the prefix ids seen, so it grows with the different texts of a trace and not with its
    requests; and the keys of the prompt that was asked for last.
    """

    def __init__(self) -> None:
        self._first_of: dict[int, int] = {}
        self._next_token = 0
        self._last: Arrival | None = None
        self._last_prompt: tuple[int, ...] = ()
        self._last_keys = PromptKeys((), NO_EXTRAS)

    def keys(self, arrival: Arrival, block_size: int) -> tuple[bytes, ...]:
        """Keys of a prompt's full blocks; none where nothing is known of the prompt."""
        if not arrival.prefix_ids:
            return ()
        self._write(arrival)
        return self._last_keys.of(block_size)

    def prompt(self, arrival: Arrival) -> tuple[int, ...]:
        """Token ids of a prompt."""
        if not arrival.prefix_ids:
            return (self.answer(arrival.number),) * arrival.prompt_tokens
        self._write(arrival)
        return self._last_prompt

    def _write(self, arrival: Arrival) -> None:
        if arrival is self._last:
            return
        length, piece = arrival.prompt_tokens, arrival.piece_tokens
        tokens: list[int] = []
        for prefix_id in arrival.prefix_ids[: -(-length // piece)]:
            first = self._first_of.get(prefix_id)
            if first is None:
                first = self._first_of[prefix_id] = self._next_token
                self._next_token += piece
            tokens.extend(range(first, first + piece))
        del tokens[length:]
        tokens.extend((self.answer(arrival.number),) * (length - len(tokens)))
        self._last, self._last_prompt = arrival, tuple(tokens)
        self._last_keys = PromptKeys(self._last_prompt, NO_EXTRAS)

    def answer(self, number: int) -> int:
        """The token that the answer of request `number` consists of."""
        return _OWN_TOKENS + number


def speed_up(arrivals: Iterable[Arrival], factor: float) -> Iterator[Arrival]:
    """The same requests, `factor` times as fast one after the other."""
    return (arrival._replace(seconds=arrival.seconds / factor) for arrival in arrivals)
