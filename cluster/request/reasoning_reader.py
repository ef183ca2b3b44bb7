"""Parts what a model thinks from what it says, as it comes.

Reasoning stands between two tags at the beginning of an answer; the first may already stand at the
end of the prompt. Neither tag nor a half of one is given out, nor blanks next to them. The outcome
does not depend on how the text is divided. Units: characters.
"""

from dataclasses import dataclass
from enum import Enum, auto

from blockyard.cluster.request.speech_format import ThinkTags
from blockyard.cluster.request.unread_text import UnreadText

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
        self._rest = UnreadText()
        self._blanks: list[str] = []
        self._told = False

    def push(self, text: str) -> Parted:
        """Take text; what of it is certain."""
        if self._place is _Place.TEXT:
            return Parted(text=text)
        self._rest.push(text)
        if self._place is _Place.BEGIN:
            self._read_begin()
        reasoning = self._read_inside() if self._place is _Place.INSIDE else ""
        if self._place is _Place.BEHIND:
            self._rest.take_blanks()
            self._place = _Place.TEXT if self._rest else _Place.BEHIND
        said = self._take_left() if self._place is _Place.TEXT else ""
        return Parted(reasoning, said)

    def finish(self, cut: bool) -> Parted:
        """What is left when no more text comes; for `cut` see `CallReader.finish`."""
        rest = self._take_left()
        if cut:
            return Parted()
        if self._place is _Place.INSIDE:
            return Parted(reasoning=rest.rstrip())
        return Parted(text=rest)

    def _read_begin(self) -> None:
        self._blanks.append(self._rest.take_blanks())
        begin = self._tags.begin
        if self._rest.starts_with(begin):
            self._rest.take(len(begin))
            self._blanks.clear()
            self._place = _Place.INSIDE
        elif not self._rest.may_become(begin):
            self._place = _Place.TEXT

    def _read_inside(self) -> str:
        if not self._told:
            self._rest.take_blanks()
        read = self._rest.take_before(self._tags.end)
        if read is not None:
            self._rest.take(len(self._tags.end))
            self._place = _Place.BEHIND
        else:
            read = self._rest.take_certain(self._tags.end)
        certain = read.rstrip()
        thought = "".join((*self._blanks, certain)) if certain else ""
        if certain or self._place is _Place.BEHIND:
            self._blanks.clear()
        if self._place is _Place.INSIDE and len(certain) < len(read):
            self._blanks.append(read[len(certain) :])
        self._told = self._told or bool(thought)
        return thought

    def _take_left(self) -> str:
        """Blanks that were held and all that is not read."""
        left = "".join((*self._blanks, self._rest.take_all()))
        self._blanks.clear()
        return left
