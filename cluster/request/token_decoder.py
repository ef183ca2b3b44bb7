"""Turns tokens into whole characters, one token after the other.

Two ways: tokens of a byte-level tokenizer are bytes, so a UTF-8 decoder that waits for the rest of
a character is exact; for all others a short window of tokens is decoded anew. Knows no stop
strings. Units: token ids, characters.
"""

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

__all__ = [
    "REPLACEMENT",
    "ByteTokenDecoder",
    "MarkDecoder",
    "TokenDecoder",
    "WindowTokenDecoder",
]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""Stands for bytes that are no text, in the tokenizer's own decoding as in ours."""


class TokenDecoder(Protocol):
    """The state of one request's decoding."""

    def push(self, token_id: int) -> str:
        """Take one token; the whole characters it completes."""
        ...

    def flush(self) -> str:
        """What is left when no more tokens come; broken characters become U+FFFD."""
        ...


class ByteTokenDecoder:
    """For tokenizers whose tokens are byte strings."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        """`token_bytes` gives a token's bytes; none for special and unknown tokens."""
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Take one token; the whole characters it completes."""
        return self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        """One U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


class WindowTokenDecoder:
    """For all other tokenizers: decodes the newest tokens after those given out last.

    The tokens before give the context on which the text may depend (a space between words). Text
    that ends in U+FFFD may be a character whose last bytes are still to come, so it is held, but
    not for longer than a character can be.
    """

    _MAX_HELD_TOKENS = 8
    _MAX_CONTEXT_TOKENS = 16

    def __init__(self, decode: Callable[[Sequence[int]], str], skipped: frozenset[int]) -> None:
        """`decode` gives the text of some tokens; `skipped` are tokens that have none."""
        self._decode = decode
        self._skipped = skipped
        self._context: list[int] = []
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        """Take one token; the whole characters it completes."""
        if token_id in self._skipped:
            return ""
        self._held.append(token_id)
        text = self._held_text()
        if text.endswith(REPLACEMENT) and len(self._held) < self._MAX_HELD_TOKENS:
            return ""
        return self._release(text)

    def flush(self) -> str:
        """The text of the tokens held."""
        return self._release(self._held_text()) if self._held else ""

    def _held_text(self) -> str:
        before = self._decode(self._context)
        return self._decode(self._context + self._held)[len(before) :]

    def _release(self, text: str) -> str:
        # The context is cut only where text was given out: there no character is in the middle.
        if text or len(self._context) >= self._MAX_CONTEXT_TOKENS:
            self._context = []
        self._context += self._held
        self._held = []
        return text


class MarkDecoder:
    """Spells some control tokens out, which are marks to whoever reads the text."""

    def __init__(self, inner: TokenDecoder, spellings: Mapping[int, str]) -> None:
        """`inner` decodes all tokens but those of `spellings`."""
        self._inner = inner
        self._spellings = spellings

    def push(self, token_id: int) -> str:
        """Take one token; the whole characters it completes."""
        spelling = self._spellings.get(token_id)
        if spelling is None:
            return self._inner.push(token_id)
        return self._inner.flush() + spelling

    def flush(self) -> str:
        """What is left when no more tokens come."""
        return self._inner.flush()
