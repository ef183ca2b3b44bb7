"""Reads one function call, a JSON object with a name and arguments, character by character.

The name is told as soon as it is known and the arguments as they come, whichever stands first.
Arguments stay as the model wrote them. Knows no tags around the object. Units: characters.
"""

import json
from dataclasses import dataclass
from enum import Enum, auto
from typing import Self

__all__ = ["CallObject", "CallPiece", "ObjectState"]

_NAME_KEYS = frozenset({"name", "function"})
_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_OTHER_KEYS = frozenset({"id", "type"})
_BLANKS = frozenset(" \t\r\n")


@dataclass(frozen=True, slots=True)
class CallPiece:
    """What is new of a call: its name, which begins it, or arguments to be joined."""

    name: str = ""
    arguments: str = ""


class ObjectState(Enum):
    """How far an object is: being read, read to its end, or no call at all."""

    OPEN = auto()
    DONE = auto()
    BROKEN = auto()


class _Place(Enum):
    BEGIN = auto()
    KEY_OR_END = auto()
    KEY = auto()
    COLON = auto()
    VALUE_BEGIN = auto()
    VALUE = auto()
    AFTER_VALUE = auto()


class CallObject:
    """One call so far.

    With `known` names it is broken as soon as it names another, or has a key that calls have not:
    then it was some other object.
    """

    def __init__(self, known: frozenset[str] | None = None) -> None:
        self._known = known
        self._place = _Place.BEGIN
        self._bare = False
        self._key = ""
        self._value: list[str] = []
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._held: list[str] = []
        self._has_arguments = False
        self._news: list[CallPiece] = []
        self._raw: list[str] = []
        self.name = ""
        self.state = ObjectState.OPEN

    @classmethod
    def of(cls, name: str) -> Self:
        """The call of a function whose name is known: what is read is its arguments alone."""
        call = cls()
        call._bare = True
        call._key, call._place = "arguments", _Place.VALUE_BEGIN
        call._announce(name)
        return call

    @property
    def raw(self) -> str:
        """Its text as it came."""
        return "".join(self._raw)

    def push(self, character: str) -> bool:
        """Take one character, which belongs to it; whether it is still open."""
        self._raw.append(character)
        self._take(character)
        return self.state is ObjectState.OPEN

    def news(self) -> list[CallPiece]:
        """What became known since the last call of this."""
        news, self._news = self._news, []
        joined = "".join(piece.arguments for piece in news)
        pieces = [CallPiece(name=piece.name) for piece in news if piece.name]
        return [*pieces, CallPiece(arguments=joined)] if joined else pieces

    def _take(self, character: str) -> None:
        if self._place in (_Place.KEY, _Place.VALUE):
            if self._place is _Place.KEY:
                self._take_key(character)
            else:
                self._take_value(character)
        elif character in _BLANKS:
            return
        elif self._place is _Place.VALUE_BEGIN:
            self._value, self._depth = [], 0
            self._place = _Place.VALUE
            self._take_value(character)
        else:
            self._take_mark(character)

    def _take_mark(self, character: str) -> None:
        match self._place, character:
            case _Place.BEGIN, "{":
                self._place = _Place.KEY_OR_END
            case _Place.KEY_OR_END, '"':
                self._place, self._value = _Place.KEY, ['"']
            case _Place.COLON, ":":
                self._place = _Place.VALUE_BEGIN
            case _Place.AFTER_VALUE, ",":
                self._place = _Place.KEY_OR_END
            case ((_Place.KEY_OR_END | _Place.AFTER_VALUE), "}"):
                self._end()
            case _:
                self.state = ObjectState.BROKEN

    def _take_key(self, character: str) -> None:
        self._value.append(character)
        if not self._ends_string(character):
            return
        key = _text_of("".join(self._value))
        if key is None or (
            self._known is not None and key not in _NAME_KEYS | _ARGUMENT_KEYS | _OTHER_KEYS
        ):
            self.state = ObjectState.BROKEN
            return
        self._key, self._place = key, _Place.COLON

    def _take_value(self, character: str) -> None:
        if self._in_string:
            self._append(character)
            if self._ends_string(character):
                self._in_string = False
                if not self._depth:
                    self._end_value()
        elif character == '"':
            self._in_string = True
            self._append(character)
        elif character in "{[":
            self._depth += 1
            self._append(character)
        elif character in "}]" and self._depth:
            self._depth -= 1
            self._append(character)
            if not self._depth:
                self._end_value()
        elif character in ",}" and not self._depth:  # the end of a number, true, false or null
            self._end_value()
            if self.state is ObjectState.OPEN:
                self._take_mark(character)
        else:
            self._append(character)

    def _ends_string(self, character: str) -> bool:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            return True
        return False

    def _append(self, character: str) -> None:
        self._value.append(character)
        if self._key in _ARGUMENT_KEYS and self._value[0] in "{[":
            self._tell(character)

    def _end_value(self) -> None:
        self._place = _Place.AFTER_VALUE
        value = "".join(self._value).strip()
        if self._key in _ARGUMENT_KEYS:
            self._has_arguments = True
            if value.startswith('"'):
                self._tell(_text_of(value) or value)  # some write the object's JSON as a string
            elif not value.startswith(("{", "[")):
                self._tell("{}" if value == "null" else value)
        elif self._key in _NAME_KEYS and (name := _text_of(value)):
            if self._known is not None and name not in self._known:
                self.state = ObjectState.BROKEN
                return
            self._announce(name)
        if self._bare:
            self._end()

    def _announce(self, name: str) -> None:
        if self.name:
            return
        self.name = name
        self._news.append(CallPiece(name=name))
        if self._held:
            self._tell("".join(self._held))
            self._held.clear()

    def _tell(self, arguments: str) -> None:
        if self.name:
            self._news.append(CallPiece(arguments=arguments))
        else:
            self._held.append(arguments)

    def _end(self) -> None:
        if not self.name:
            self.state = ObjectState.BROKEN
            return
        if not self._has_arguments:
            self._tell("{}")
        self.state = ObjectState.DONE


def _text_of(value: str) -> str | None:
    """The text that a JSON string spells; None when it is none."""
    try:
        text = json.loads(value, strict=False)
    except ValueError:
        return None
    return text if isinstance(text, str) else None
