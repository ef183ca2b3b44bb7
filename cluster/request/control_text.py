"""Keeps control tokens that a stranger spells in a message from becoming control tokens.

Before the template is rendered each such spelling is replaced by a mark that cannot be guessed;
what spells a control token afterwards is the template's own. Then the text is encoded piece by
piece: control tokens by their ids, the pieces between with the spellings put back, by an encoder
that knows no control tokens. Units: text, token ids.
"""

import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Protocol

__all__ = ["ControlText", "ControlToken", "Disguise", "PlainEncoder"]


class ControlToken(Protocol):
    """What is asked of a tokenizer's entry for a control token."""

    @property
    def content(self) -> str:
        """How it is spelled."""
        ...

    @property
    def lstrip(self) -> bool:
        """Whether it swallows white space before it."""
        ...

    @property
    def rstrip(self) -> bool:
        """Whether it swallows white space after it."""
        ...


class PlainEncoder:
    """Encodes text of which no part may become a control token."""

    def __init__(self, encode: Callable[[str], tuple[int, ...]], special: frozenset[int]) -> None:
        self._encode = encode
        self._special = special

    def encode(self, text: str) -> list[int]:
        """Tokens of `text`, none of them a control token."""
        token_ids = self._encode(text) if text else ()
        if self._special.isdisjoint(token_ids):
            return list(token_ids)
        # Some models find a control token among their ordinary pieces; letters alone never are.
        letters = [token for letter in text for token in self._encode(letter)]
        return [token for token in letters if token not in self._special]


class Disguise:
    """Replaces spellings of control tokens by marks of one request, and back."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        # Private-use characters round a number that nobody outside can know.
        self._nonce = str(secrets.randbelow(10**18))
        self._spellings: list[str] = []
        self._mark = re.compile(f"\ue000{self._nonce}:([0-9]+)\ue001")

    def hide(self, value: Any) -> Any:
        """A text with a mark in place of each spelling; so in all texts of lists and objects."""
        if isinstance(value, str):
            return self._pattern.sub(self._replace, value)
        if isinstance(value, Mapping):
            return {self.hide(name): self.hide(entry) for name, entry in value.items()}
        return [self.hide(entry) for entry in value] if isinstance(value, list) else value

    def reveal(self, text: str) -> str:
        """`text` with each mark's spelling in its place."""
        return self._mark.sub(lambda match: self._spellings[int(match[1])], text)

    def _replace(self, match: re.Match[str]) -> str:
        self._spellings.append(match[0])
        return f"\ue000{self._nonce}:{len(self._spellings) - 1}\ue001"


class ControlText:
    """The spellings of a model's control tokens."""

    def __init__(self, tokens: Mapping[int, ControlToken]) -> None:
        self._ids = {token.content: token_id for token_id, token in tokens.items()}
        self._tokens = {token.content: token for token in tokens.values()}
        # The longest first: of two spellings at one place the tokenizer takes the longer.
        spellings = sorted(filter(None, self._ids), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, spellings)) if spellings else r"(?!)")

    def appears_in(self, value: Any) -> bool:
        """Whether a text spells a control token, or any text in a list or an object."""
        if isinstance(value, str):
            return self._pattern.search(value) is not None
        if isinstance(value, Mapping):
            return any(self.appears_in(part) for entry in value.items() for part in entry)
        return isinstance(value, list) and any(map(self.appears_in, value))

    def disguise(self) -> Disguise:
        """A fresh disguise for one request."""
        return Disguise(self._pattern)

    def encode(self, text: str, disguise: Disguise, plain: PlainEncoder) -> tuple[int, ...]:
        """Tokens of rendered text in which the caller's spellings are disguised."""
        token_ids: list[int] = []
        position = 0
        eats_space = False
        for match in self._pattern.finditer(text):
            token = self._tokens[match[0]]
            piece = text[position : match.start()]
            piece = piece.lstrip() if eats_space else piece
            piece = piece.rstrip() if token.lstrip else piece
            token_ids += plain.encode(disguise.reveal(piece))
            token_ids.append(self._ids[match[0]])
            position = match.end()
            eats_space = token.rstrip
        rest = text[position:].lstrip() if eats_space else text[position:]
        token_ids += plain.encode(disguise.reveal(rest))
        return tuple(token_ids)
