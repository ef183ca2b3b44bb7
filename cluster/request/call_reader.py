"""Finds calls of functions in what a model says, as it says it.

Neither a mark nor a half of one is ever given out as text: what may turn out to be one is held
until that is clear. What looked like a call and is none becomes text, as a whole. Blanks round
calls are dropped. The outcome does not depend on how the text is divided. Units: characters.
"""

import re
from collections.abc import Callable
from enum import Enum, auto

from blockyard.cluster.request.call_json import CallObject, CallPiece, ObjectState
from blockyard.cluster.request.speech_format import ToolFormat
from blockyard.cluster.request.unread_text import UnreadText

__all__ = ["CallReader"]

_CLOSER = "</tool_call>"
_ARGS = "[ARGS]"
_CALL_ID = "[CALL_ID]"
_CALL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NAME_LIMIT = 256
"""More characters than a name and an id of a call ever have."""


class _Place(Enum):
    BEGIN = auto()  # of the answer, where calls need no mark
    TEXT = auto()
    CALLS = auto()  # behind the opener, or between two calls
    NAME = auto()
    OBJECT = auto()
    CLOSING = auto()
    SKIPPING = auto()  # what is left of a call that broke off in the middle
    PLAIN = auto()  # no call can come any more


class CallReader:
    """One answer so far.

    Args:
        tool_format: how the model writes calls.
        names: functions that there are.
        most_calls: the answer is over after so many; None means any number.
    """

    def __init__(
        self, tool_format: ToolFormat, names: frozenset[str], most_calls: int | None = None
    ) -> None:
        self._format = tool_format
        self._names = names
        self._most_calls = most_calls
        self._rest = UnreadText()
        self._blanks: list[str] = []
        self._raw: list[str] = []
        self._call: CallObject | None = None
        self._listed = False
        self._out: list[str | CallPiece] = []
        self._num_ended = 0
        self.num_calls = 0
        self._place = _Place.BEGIN if tool_format is ToolFormat.LLAMA3 else _Place.TEXT

    @property
    def full(self) -> bool:
        """Whether all calls that may be made have been made."""
        return self._most_calls is not None and self._num_ended >= self._most_calls

    def push(self, text: str) -> list[str | CallPiece]:
        """Take text; what became certain: text, and pieces of calls."""
        self._rest.push(text)
        steps: dict[_Place, Callable[[], bool]] = {
            _Place.BEGIN: self._read_begin,
            _Place.TEXT: self._read_text,
            _Place.CALLS: self._read_calls,
            _Place.NAME: self._read_name,
            _Place.OBJECT: self._read_object,
            _Place.CLOSING: self._read_closing,
            _Place.SKIPPING: self._read_skipped,
            _Place.PLAIN: self._read_plain,
        }
        while self._rest and not self.full and steps[self._place]():
            pass
        out, self._out = self._out, []
        return out

    def finish(self, cut: bool) -> list[str | CallPiece]:
        """What is left when no more text comes; `cut` says that it ended against the model's will.

        Half a mark and half a call are then dropped; they are text when the model has ended there.
        """
        if not cut:
            if self._place is _Place.OBJECT and self._call is not None and not self._call.name:
                self._say("".join(self._raw) + self._call.raw)
            elif self._place is _Place.NAME or (self._place is _Place.CALLS and not self.num_calls):
                self._say("".join(self._raw) + self._rest.take_all())
            elif self._place in (_Place.TEXT, _Place.BEGIN, _Place.PLAIN):
                self._say(self._rest.take_all())
        if not self.num_calls and any(self._blanks):
            self._out.append("".join(self._blanks))
        self._rest.take_all()
        self._blanks.clear()
        out, self._out = self._out, []
        return out

    # Each of these takes from the rest what it can; False when it needs more to go on.

    def _read_begin(self) -> bool:
        self._blanks.append(self._rest.take_blanks())
        opener = self._format.opener
        if self._rest.may_become(opener):
            return False
        if self._rest.starts_with(opener):
            self._rest.take(len(opener))
            self._place = _Place.CALLS
        elif self._rest.first == "{":
            self._place = _Place.CALLS
        else:
            self._place = _Place.PLAIN
        return True

    def _read_text(self) -> bool:
        opener = self._format.opener
        before = self._rest.take_before(opener)
        if before is None:
            self._say(self._rest.take_certain(opener))
            return False
        self._say(before)
        self._raw = [self._rest.take(len(opener))]
        self._place, self._listed = _Place.CALLS, False
        return True

    def _read_plain(self) -> bool:
        self._say(self._rest.take_all())
        return False

    def _read_calls(self) -> bool:
        self._take_blanks()
        if not self._rest:
            return False
        first = self._rest.first
        if first == "{":
            known = self._names if self._format is ToolFormat.LLAMA3 else None
            self._call, self._place = CallObject(known), _Place.OBJECT
            return True
        if self._format is ToolFormat.LLAMA3 and first in ";," and self.num_calls:
            self._rest.take(1)
            return True
        if self._format is ToolFormat.MISTRAL:
            return self._read_mistral_mark(first)
        self._give_up()
        return True

    def _read_mistral_mark(self, first: str) -> bool:
        opener = self._format.opener
        if first == "[" and self._rest.may_become(opener):
            return False
        if self._rest.starts_with(opener):
            self._take_raw(len(opener))
        elif first == "[" and not self._listed:
            self._take_raw(1)
            self._listed = True
        elif first in ",]" and self._listed:
            self._take_raw(1)
            self._place = _Place.TEXT if first == "]" else self._place
        elif not self._listed and _CALL_NAME.match(first):
            self._place = _Place.NAME
        else:
            self._give_up()
        return True

    def _read_name(self) -> bool:
        head = self._rest.peek_before("{", _NAME_LIMIT)
        if head is None:
            if len(self._rest) <= _NAME_LIMIT:
                return False
            self._give_up()
            return True
        name = head.partition(_CALL_ID)[0].partition(_ARGS)[0].strip()
        if not _CALL_NAME.fullmatch(name):
            self._give_up()
            return True
        self._take_raw(len(head))
        self._call, self._place = CallObject.of(name), _Place.OBJECT
        self._tell(self._call)
        return True

    def _read_object(self) -> bool:
        call = self._call
        assert call is not None
        self._rest.feed(call.push)
        self._tell(call)
        if call.state is ObjectState.DONE:
            self._num_ended += 1
            hermes = self._format is ToolFormat.HERMES
            self._place, self._raw = (_Place.CLOSING if hermes else _Place.CALLS), []
        elif call.state is ObjectState.BROKEN:
            if call.name:
                self._place = _Place.SKIPPING
            else:
                self._raw.append(call.raw)
                self._give_up()
        return True

    def _read_closing(self) -> bool:
        self._take_blanks()
        if self._rest.starts_with(_CLOSER):
            self._rest.take(len(_CLOSER))
            self._place = _Place.TEXT
            return True
        if self._rest.may_become(_CLOSER):
            return False
        self._place = _Place.SKIPPING
        return True

    def _read_skipped(self) -> bool:
        hermes = self._format is ToolFormat.HERMES
        if hermes and self._rest.take_before(_CLOSER) is not None:
            self._rest.take(len(_CLOSER))
            self._place = _Place.TEXT
            return True
        self._rest.take_certain(_CLOSER)
        return False

    def _tell(self, call: CallObject) -> None:
        for piece in call.news():
            if piece.name:
                self.num_calls += 1
                self._blanks.clear()
            self._out.append(piece)

    def _give_up(self) -> None:
        """What was taken for a call is text."""
        self._say("".join(self._raw))
        self._raw = []
        untagged = self._format is ToolFormat.LLAMA3
        self._place = _Place.PLAIN if untagged else _Place.TEXT

    def _take_blanks(self) -> None:
        self._raw.append(self._rest.take_blanks())

    def _take_raw(self, count: int) -> None:
        self._raw.append(self._rest.take(count))

    def _say(self, text: str) -> None:
        """Give out text, but for blanks at its end: a call may follow."""
        certain = text.rstrip()
        if certain:
            self._out.append("".join((*self._blanks, certain)))
            self._blanks.clear()
        if len(certain) < len(text):
            self._blanks.append(text[len(certain) :])
