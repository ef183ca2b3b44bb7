"""Parts what a model thinks from what it says, as it comes.

Reasoning stands between two tags at the beginning of an answer; the first may already stand at the
end of the prompt. Neither tag nor a half of one is given out, nor blanks next to them. The outcome
does not depend on how the text is divided. Units: characters.
"""

from dataclasses import dataclass
from enum import Enum, auto

from blockyard.cluster.request.call_reader import held_length
from blockyard.cluster.request.speech_format import ThinkTags

__all__ = ["Parted", "ReasoningReader"]


@dataclass(frozen=True, slots=True)
class Parted:
    """New reasoning, and new text behind it."""

    reasoning: str = ""
    text: str = ""


class _Place(Enum):
    BEGIN = auto()
    INSIDE = auto()
    BEHIND = auto()  # where blanks are still dropped
    TEXT = auto()


class ReasoningReader:
    """One answer so far; `begun` says that the prompt ended inside the reasoning."""

    def __init__(self, tags: ThinkTags, begun: bool) -> None:
        self._tags = tags
        self._place = _Place.INSIDE if begun else _Place.BEGIN
        self._rest = ""
        self._told = False

    def push(self, text: str) -> Parted:
        """Take text; what of it is certain."""
        if self._place is _Place.TEXT:
            return Parted(text=text)
        self._rest += text
        if self._place is _Place.BEGIN:
            self._read_begin()
        reasoning = self._read_inside() if self._place is _Place.INSIDE else ""
        if self._place is _Place.BEHIND:
            self._rest = self._rest.lstrip()
            self._place = _Place.TEXT if self._rest else _Place.BEHIND
        said = ""
        if self._place is _Place.TEXT:
            said, self._rest = self._rest, ""
        return Parted(reasoning, said)

    def finish(self, cut: bool) -> Parted:
        """What is left when no more text comes; for `cut` see `CallReader.finish`."""
        rest, self._rest = self._rest, ""
        if cut:
            return Parted()
        if self._place is _Place.INSIDE:
            return Parted(reasoning=rest.rstrip())
        return Parted(text=rest)

    def _read_begin(self) -> None:
        start, begin = self._rest.lstrip(), self._tags.begin
        if start.startswith(begin):
            self._rest, self._place = start[len(begin) :], _Place.INSIDE
        elif not begin.startswith(start):
            self._place = _Place.TEXT

    def _read_inside(self) -> str:
        if not self._told:
            self._rest = self._rest.lstrip()
        thought, found, after = self._rest.partition(self._tags.end)
        if found:
            self._rest, self._place = after, _Place.BEHIND
            return thought.rstrip()
        certain = len(self._rest) - held_length(self._rest, self._tags.end)
        thought = self._rest[:certain].rstrip()
        self._rest = self._rest[len(thought) :]
        self._told = self._told or bool(thought)
        return thought
