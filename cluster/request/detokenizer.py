"""Turns one request's tokens into text, as they come, and finds its stop strings.

Never gives out half a character nor text that may turn out to be the start of a stop string. The
pieces joined equal the text of all tokens decoded at once. Work for a token depends on the text it
adds, not on the text so far. Knows no requests and no engines. Units: characters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from blockyard.cluster.request.token_decoder import TokenDecoder

__all__ = ["Detokenizer", "StopMatcher", "TextPiece"]


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that is certain now. `stop` is the stop string that ended it; nothing follows then."""

    text: str
    stop: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the text."""
        return self.stop is not None


class StopMatcher:
    """Cuts a text before the first stop string that completes in it, or after it.

    Of stop strings that complete at the same character the longest counts. The outcome does not
    depend on how the text is divided into pieces.
    """

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        """With `include_stop` the stop string stays in the text."""
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._fallbacks = tuple(_fallback_lengths(stop) for stop in self._stops)
        # For each stop string: how many of its first characters the text ends with.
        self._matched = [0] * len(self._stops)
        self._held = ""
        self._stop: str | None = None

    def push(self, text: str) -> TextPiece:
        """Take more text and give out what can no longer be part of a stop string."""
        if self._stop is not None:
            return TextPiece("", self._stop)
        if not self._stops:
            return TextPiece(text)
        pending = self._held + text
        for position in range(len(self._held), len(pending)):
            stop = self._advance(pending[position])
            if stop:
                self._held, self._stop = "", stop
                end = position + 1 - (0 if self._include_stop else len(stop))
                return TextPiece(pending[:end], stop)
        # With the stop string kept, all that comes before its completion is certain.
        certain = len(pending) - (0 if self._include_stop else max(self._matched))
        self._held = pending[certain:]
        return TextPiece(pending[:certain])

    def flush(self) -> str:
        """Give out what was held: no more text comes."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str:
        """Take one character; the longest stop string it completes, or an empty one."""
        completed = ""
        for index, stop in enumerate(self._stops):
            matched = self._matched[index]
            fallbacks = self._fallbacks[index]
            while matched and stop[matched] != character:
                matched = fallbacks[matched - 1]
            if stop[matched] == character:
                matched += 1
            if matched == len(stop):
                completed = max(completed, stop, key=len)
            self._matched[index] = matched
        return completed


def _fallback_lengths(stop: str) -> tuple[int, ...]:
    """For each prefix of `stop`: length of its longest proper suffix that is also a prefix."""
    lengths = [0] * len(stop)
    matched = 0
    for position in range(1, len(stop)):
        while matched and stop[position] != stop[matched]:
            matched = lengths[matched - 1]
        if stop[position] == stop[matched]:
            matched += 1
        lengths[position] = matched
    return tuple(lengths)


class Detokenizer:
    """One request's text so far."""

    def __init__(
        self, decoder: TokenDecoder, stops: Sequence[str] = (), include_stop: bool = False
    ) -> None:
        self._decoder = decoder
        self._matcher = StopMatcher(stops, include_stop)
        self._num_decoded = 0

    @property
    def num_decoded(self) -> int:
        """Characters of the tokens so far, those that are held back included."""
        return self._num_decoded

    def push(self, token_id: int) -> TextPiece:
        """Take one token; the text that became certain by it."""
        return self._take(self._decoder.push(token_id))

    def flush(self) -> TextPiece:
        """Give out all that was held: no more tokens come."""
        piece = self._take(self._decoder.flush())
        if piece.stopped:
            return piece
        return TextPiece(piece.text + self._matcher.flush())

    def _take(self, text: str) -> TextPiece:
        self._num_decoded += len(text)
        return self._matcher.push(text)
