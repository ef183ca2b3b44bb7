"""A server under load, as a protocol; and how one request of a load fared. Units: tokens, seconds.

Knows no transport.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from blockyard.cluster.benchmark.load_requests import LoadRequest

__all__ = ["Answer", "Endpoint", "EndpointError", "Outcome", "ServedModel"]


class EndpointError(Exception):
    """A request failed; `kind` is what failures of its sort are counted under."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server tells of a model; None where it does not say."""

    name: str
    context_tokens: int | None = None
    vocab_size: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """How an answer ended.

    Attributes:
        text: all of it.
        completion_tokens: by the server's own count; None where it gives none.
        complete: it ended by itself and not because it was long enough.
    """

    text: str
    completion_tokens: int | None
    complete: bool


class Endpoint(Protocol):
    """A server that answers in streams."""

    async def model(self, name: str) -> ServedModel:
        """The model of this name, the server's first one for an empty name.

        Raises:
            EndpointError: the server cannot be reached or has no such model.
        """
        ...

    async def ask(self, request: LoadRequest, arrived: Callable[[int], None]) -> Answer:
        """Send one request; `arrived` is told of each piece as it comes, with its tokens.

        Raises:
            EndpointError: it failed, before or in the middle of its answer.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


@dataclass(slots=True)
class Outcome:
    """One request's times, in seconds since the load began.

    Attributes:
        request: what was asked.
        due: when it was to be sent; in a closed loop when it was.
        pieces: when each piece of the answer came, and its tokens.
        ended: when all was over.
        answer: None when it failed.
        error: what failures are counted under; empty when there was none.
        message: what the server said of it.
    """

    request: LoadRequest
    due: float
    pieces: list[tuple[float, int]] = field(default_factory=list)
    ended: float = 0.0
    answer: Answer | None = None
    error: str = ""
    message: str = ""

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer, as the server counts if it tells, else as they were seen."""
        seen = sum(count for _, count in self.pieces)
        told = self.answer.completion_tokens if self.answer is not None else None
        return seen if told is None else told

    @property
    def first_token_seconds(self) -> float | None:
        """From when it was due to its first piece; None when there was none."""
        return self.pieces[0][0] - self.due if self.pieces else None

    def later(self, seconds: float) -> "Outcome":
        """The same in a load that began so much earlier."""
        pieces = [(when + seconds, count) for when, count in self.pieces]
        return replace(self, due=self.due + seconds, pieces=pieces, ended=self.ended + seconds)

    def gaps(self) -> list[float]:
        """Seconds between tokens: a piece of several shares out the wait for it."""
        gaps: list[float] = []
        for (before, _), (now, count) in zip(self.pieces, self.pieces[1:], strict=False):
            gaps.extend([(now - before) / count] * count)
        return gaps
