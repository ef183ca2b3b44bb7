"""Reads a JSON object field by field, with types; whatever is left over is refused by name.

`null` counts as absent. Knows no field by itself.
"""

from collections.abc import Mapping
from typing import Any

from blockyard.cluster.request.limits import invalid

__all__ = ["JsonFields", "check_token_id"]

_MOST_SHOWN = 40


class JsonFields:
    """What has not been read yet of one object; `path` stands before names in refusals."""

    def __init__(self, fields: object, path: str = "") -> None:
        """Refuse what is no object."""
        if not isinstance(fields, Mapping):
            raise invalid(path or "body", f"is {_shown(fields)}; it must be an object")
        self._rest = {str(name): value for name, value in fields.items() if value is not None}
        self._path = path

    def name(self, name: str) -> str:
        """A field as refusals name it."""
        return f"{self._path}.{name}" if self._path else name

    def take(self, name: str) -> Any:
        """A field of any type; None when it is absent."""
        return self._rest.pop(name, None)

    def text(self, name: str) -> str | None:
        """A string."""
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def number(self, name: str) -> float | None:
        """A number."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value, "a number")
        try:
            return float(value)
        except OverflowError:
            raise self._wrong(name, value, "a number of ordinary size") from None

    def whole(self, name: str, least: int = -(2**63), most: int = 2**63 - 1) -> int | None:
        """A whole number; `least` and `most` are what the message that takes it can hold."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, value, "a whole number")
        if not least <= value <= most:
            raise self._wrong(name, value, f"from {least} to {most}")
        return value

    def flag(self, name: str) -> bool | None:
        """True or false."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def texts(self, name: str) -> list[str]:
        """A string, or a list of strings; none when it is absent."""
        value = self.take(name)
        if value is None:
            return []
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list):
            raise self._wrong(name, value, "a string or a list of strings")
        for index, entry in enumerate(value):
            if not isinstance(entry, str):
                raise self._wrong(f"{name}[{index}]", entry, "a string")
        return value

    def token_ids(self, name: str) -> list[int]:
        """A list of token ids; none when it is absent."""
        value = self.take(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list of token ids")
        for index, entry in enumerate(value):
            check_token_id(self.name(f"{name}[{index}]"), entry)
        return value

    def objects(self, name: str) -> list[Any]:
        """A list; none when it is absent."""
        value = self.take(name)
        if value is not None and not isinstance(value, list):
            raise self._wrong(name, value, "a list")
        return value or []

    def refuse_rest(self) -> None:
        """Refuse a field that nobody has read."""
        for name in sorted(self._rest):
            raise invalid(self.name(name)[:_MOST_SHOWN], "is not known here; leave it out")

    def refuse(self, name: str, why: str) -> None:
        """Refuse a field when it is there."""
        if self.take(name) is not None:
            raise invalid(self.name(name), why)

    def _wrong(self, name: str, value: object, kind: str) -> Exception:
        return invalid(self.name(name), f"is {_shown(value)}; it must be {kind}")


def check_token_id(field: str, value: object) -> None:
    """Refuse what cannot be the id of a token of any model."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**31) <= value < 2**31:
        raise invalid(field, f"is {_shown(value)}; it must be a token id")


def _shown(value: object) -> str:
    if isinstance(value, list | Mapping):
        return "a list" if isinstance(value, list) else "an object"
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."
