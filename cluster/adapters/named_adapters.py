"""Adapters that a deployment starts with, from names and directories as people write them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockyard.workers.adapter_description import (
    AdapterDescription,
    AdapterRefused,
    describe_adapter,
)

__all__ = ["named_adapters", "parse_adapters"]


def named_adapters(directories: Any, max_rank: int) -> tuple[AdapterDescription, ...]:
    """What their files say.

    Args:
        directories: by name.
        max_rank: the widest that is taken.

    Raises:
        ValueError: one cannot be served; the message names it.
    """
    if not isinstance(directories, Mapping):
        raise ValueError("adapters is no mapping of names to directories")
    found = []
    for name, directory in directories.items():
        try:
            found.append(describe_adapter(Path(directory).resolve(), str(name), max_rank))
        except AdapterRefused as refusal:
            raise ValueError(f"adapter {name} in {directory}: {refusal}") from None
    return tuple(found)


def parse_adapters(words: list[str]) -> dict[str, str]:
    """Names and directories of `NAME=PATH` words.

    Raises:
        ValueError: one is no such word, or a name comes twice.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, directory = word.partition("=")
        if not equals or not name or not directory:
            raise ValueError(f"{word!r} is not NAME=PATH, the name and directory of an adapter")
        if name in found:
            raise ValueError(f"the adapter {name!r} is named twice")
        found[name] = directory
    return found
