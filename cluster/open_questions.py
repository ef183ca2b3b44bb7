"""Questions asked over a connection that are not answered yet, by ticket. Knows no wire."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

__all__ = ["OpenQuestions", "Ticketed"]


class Ticketed(Protocol):
    """A message that answers the question with its ticket."""

    @property
    def ticket(self) -> int:
        """Of the question."""
        ...


Answer = TypeVar("Answer", bound=Ticketed)


class OpenQuestions:
    """Of one connection."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[type[Ticketed], asyncio.Future[Any]]] = {}

    @contextmanager
    def asked(self, ticket: int, kind: type[Answer]) -> Iterator[asyncio.Future[Answer]]:
        """A message of this kind answers what is asked with this ticket, within the context."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[ticket] = (kind, answer)
        try:
            yield answer
        finally:
            del self._open[ticket]

    def settle(self, message: Ticketed) -> None:
        """An answer has come, if somebody still waits for it."""
        kind, answer = self._open.get(message.ticket, (None, None))
        if kind is type(message) and answer is not None and not answer.done():
            answer.set_result(message)

    def end(self, error: Exception | None = None) -> None:
        """Nothing more is answered: whoever waits has the error, or is cancelled without one."""
        for _, answer in self._open.values():
            if error is None:
                answer.cancel()
            elif not answer.done():
                answer.set_exception(error)
