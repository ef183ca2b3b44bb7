"""What a model says, parted into text, reasoning and calls of functions, as chunks tell it.

One plan for a request, and from it a reader for each of its answers. Knows no tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from blockyard.cluster.request.call_json import CallPiece
from blockyard.cluster.request.call_reader import CallReader
from blockyard.cluster.request.reasoning_reader import ReasoningReader
from blockyard.cluster.request.speech_format import ThinkTags, ToolFormat
from blockyard.protos import generation_pb2 as pb

__all__ = ["Speech", "SpeechPlan"]


@dataclass(frozen=True, slots=True)
class SpeechPlan:
    """What to look for in the answers to one request.

    Attributes:
        tools: how calls are written; None where none is looked for.
        names: functions that there are.
        most_calls: after so many an answer is over; None means any number.
        reasoning: what reasoning stands between; None where none is looked for.
        begun: whether the prompt ends inside the reasoning.
    """

    tools: ToolFormat | None = None
    names: frozenset[str] = frozenset()
    most_calls: int | None = None
    reasoning: ThinkTags | None = None
    begun: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that must reach the readers even where they are control tokens."""
        tags = (self.reasoning.begin, self.reasoning.end) if self.reasoning is not None else ()
        return (*tags, *(self.tools.marks if self.tools is not None else ()))

    def begin(self) -> "Speech | None":
        """A reader for one answer; None when there is nothing to look for."""
        return Speech(self) if self.tools is not None or self.reasoning is not None else None


class Speech:
    """One answer so far."""

    def __init__(self, plan: SpeechPlan) -> None:
        self._num_told = 0
        self._tools = plan.tools
        self._calls = (
            CallReader(plan.tools, plan.names, plan.most_calls) if plan.tools is not None else None
        )
        self._reasoning = (
            ReasoningReader(plan.reasoning, plan.begun) if plan.reasoning is not None else None
        )

    @property
    def full(self) -> bool:
        """Whether the answer is over, for all calls that may be made have been made."""
        return self._calls is not None and self._calls.full

    @property
    def num_calls(self) -> int:
        """Calls that have been told of."""
        return self._num_told

    def push(self, text: str, chunk: pb.GenerateChunk) -> None:
        """Take text, and add to `chunk` what became certain."""
        if self._reasoning is not None:
            parted = self._reasoning.push(text)
            chunk.reasoning += parted.reasoning
            text = parted.text
        self._push_said(text, chunk)

    def finish(self, cut: bool, chunk: pb.GenerateChunk) -> None:
        """No more text comes; `cut`: against the model's will, so halves of marks are dropped."""
        if self._reasoning is not None:
            parted = self._reasoning.finish(cut)
            chunk.reasoning += parted.reasoning
            self._push_said(parted.text, chunk)
        if self._calls is not None:
            self._tell(self._calls.finish(cut), chunk)

    def _push_said(self, text: str, chunk: pb.GenerateChunk) -> None:
        if self._calls is None:
            chunk.text += text
        elif text:
            self._tell(self._calls.push(text), chunk)

    def _tell(self, news: Iterable[str | CallPiece], chunk: pb.GenerateChunk) -> None:
        for piece in news:
            if isinstance(piece, str):
                chunk.text += piece
            elif piece.name:
                assert self._tools is not None
                call_id = self._tools.call_id()
                chunk.tool_calls.add(index=self._num_told, id=call_id, name=piece.name)
                self._num_told += 1
            elif chunk.tool_calls:
                chunk.tool_calls[-1].arguments += piece.arguments
            else:
                chunk.tool_calls.add(index=self._num_told - 1, arguments=piece.arguments)
