"""Whatever a model says, reading it is work in proportion to its length: characters are counted."""

from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex

import pytest

from blockyard.cluster.request.call_reader import CallReader
from blockyard.cluster.request.reasoning_reader import ReasoningReader
from blockyard.cluster.request.speech_format import ThinkTags, ToolFormat

MOST_EACH = 800
"""Characters touched for each that comes: a name is looked for in the last 256, a mark in fewer."""


class Counted(str):
    """A text that counts what is looked at and copied of it, and of all that is made from it."""

    touched = 0
    __slots__ = ()

    @classmethod
    def note(cls, result: str, looked_at: int | None = None) -> "Counted":
        Counted.touched += len(result) if looked_at is None else looked_at
        return cls(result)

    def __add__(self, other: str) -> "Counted":
        return self.note(str.__add__(self, other))

    def __radd__(self, other: str) -> "Counted":
        return self.note(str.__add__(str(other), self))

    def __getitem__(self, key: SupportsIndex | slice) -> "Counted":
        return self.note(str.__getitem__(self, key))

    def __iter__(self) -> Iterator[Any]:
        return (self.note(one) for one in str.__iter__(self))

    def lstrip(self, chars: str | None = None, /) -> "Counted":
        return self.note(str.lstrip(self, chars), len(self))

    def rstrip(self, chars: str | None = None, /) -> "Counted":
        return self.note(str.rstrip(self, chars), len(self))

    def find(self, text: str, start: Any = 0, end: Any = None, /) -> int:
        place = str.find(self, text, start, end)
        last = len(self) if end is None else min(len(self), end)
        Counted.touched += (place if place >= 0 else last) - start
        return place

    def partition(self, mark: str, /) -> tuple[str, str, str]:
        Counted.touched += 2 * len(self)
        before, found, after = str.partition(self, mark)
        return Counted(before), found, Counted(after)

    def endswith(self, mark: Any, *span: Any) -> bool:
        Counted.touched += len(mark)
        return str.endswith(self, mark, *span)

    def startswith(self, mark: Any, *span: Any) -> bool:
        Counted.touched += len(mark)
        return str.startswith(self, mark, *span)

    def removeprefix(self, mark: str, /) -> "Counted":
        return self.note(str.removeprefix(self, mark))


def calls(how: ToolFormat) -> Callable[[], Any]:
    return lambda: CallReader(how, frozenset({"add"}))


def thoughts() -> ReasoningReader:
    return ReasoningReader(ThinkTags("<think>", "</think>"), begun=False)


HERMES, LLAMA3, MISTRAL = (
    calls(ToolFormat.HERMES),
    calls(ToolFormat.LLAMA3),
    calls(ToolFormat.MISTRAL),
)
HOSTILE: list[tuple[str, Callable[[], Any], str, str]] = [
    ("blanks", HERMES, "", " "),
    ("blanks before a call without a mark", LLAMA3, "", "\n"),
    ("marks", HERMES, "", "<tool_call>"),
    ("half marks", HERMES, "", "<tool_cal"),
    ("marks that open no call", HERMES, "", "<tool_call>{"),
    ("blanks behind a mark", HERMES, "<tool_call>", " "),
    ("a name that does not end", HERMES, '<tool_call>{"name": "', "a"),
    ("arguments before the name", HERMES, '<tool_call>{"arguments": {"a": "', "b"),
    ("arguments", HERMES, '<tool_call>{"name": "add", "arguments": {"a": "', "b"),
    ("depth", HERMES, '<tool_call>{"name": "add", "arguments": ', "["),
    ("keys", HERMES, "<tool_call>{", '"a": 1, '),
    ("blanks behind a call", HERMES, '<tool_call>{"name": "add"}', " "),
    ("no end of a call", HERMES, '<tool_call>{"name": "add"} x', "</tool_cal"),
    ("an object that is no call", LLAMA3, '{"name": "', "x"),
    ("calls apart", LLAMA3, "", '{"name": "add", "parameters": {}}; '),
    ("names without arguments", MISTRAL, "", "[TOOL_CALLS]a"),
    ("a list that does not begin", MISTRAL, "[TOOL_CALLS]", "[TOOL_CALLS]"),
    ("a list of nothing", MISTRAL, "[TOOL_CALLS][", ","),
    ("blanks before thoughts", thoughts, "", " "),
    ("blanks among thoughts", thoughts, "<think>a", " "),
    ("half ends of thoughts", thoughts, "<think>a", "</thin"),
    ("thoughts", thoughts, "<think>", "a b "),
    ("blanks behind thoughts", thoughts, "<think>a</think>", " "),
]


def work(make: Callable[[], Any], text: str, piece: int) -> int:
    """Characters touched while a text is read in pieces of a size."""
    reader = make()
    Counted.touched = 0
    for begin in range(0, len(text), piece):
        reader.push(Counted(text[begin : begin + piece]))
    reader.finish(cut=False)
    return Counted.touched


@pytest.mark.parametrize("piece", [1, 7, 10**9])
@pytest.mark.parametrize(
    ("make", "begin", "again"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE]
)
def test_work_is_in_proportion_to_the_text(
    make: Callable[[], Any], begin: str, again: str, piece: int
) -> None:
    text = begin + again * (12_000 // len(again))
    spent = work(make, text, piece)
    assert len(text) / 2 <= spent <= MOST_EACH * len(text), f"{spent / len(text):.1f} for each"
