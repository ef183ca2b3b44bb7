"""Requests of one ingress that have asked for a group and not been given one yet. Knows no wire."""

import asyncio
from typing import NamedTuple

from blockyard.scheduler.request import RequestRefused

__all__ = ["Binding", "PendingBindings"]


class Binding(NamedTuple):
    """The group to use, None when nobody says; and whether the request had to wait for that."""

    group_id: str | None
    waited: bool = False


class _Pending:
    """One; with a second answer to come once the first has said that it waits."""

    __slots__ = ("first", "last", "request_id")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.first: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.last: asyncio.Future[str] | None = None


class PendingBindings:
    """By ticket."""

    def __init__(self) -> None:
        self._pending: dict[int, _Pending] = {}

    def begin(self, ticket: int, request_id: str) -> asyncio.Future[str | None]:
        """A request asks; the first answer to come, None: it waits."""
        pending = self._pending[ticket] = _Pending(request_id)
        return pending.first

    async def last(self, ticket: int, seconds: float | None) -> str | None:
        """The group of one that waits; None when nobody answers any more.

        Raises:
            RequestRefused: it was refused.
            TimeoutError: nothing came in so many seconds.
        """
        answer = self._pending[ticket].last
        assert answer is not None
        # wait() keeps our own cancellation apart from that of the answer.
        await asyncio.wait([answer], timeout=seconds)
        if not answer.done():
            raise TimeoutError
        return None if answer.cancelled() else answer.result()

    def end(self, ticket: int) -> bool:
        """The request asks no more; whether it had its answer."""
        pending = self._pending.pop(ticket)
        return (pending.last or pending.first).done()

    def queued(self, ticket: int) -> None:
        """One was told that it waits."""
        pending = self._pending.get(ticket)
        if pending is not None and not pending.first.done():
            pending.last = asyncio.get_running_loop().create_future()
            pending.first.set_result(None)

    def bound(self, ticket: int, group_id: str) -> None:
        """One was given a group."""
        pending = self._pending.get(ticket)
        if pending is None:
            return
        if pending.last is None:
            if not pending.first.done():
                pending.first.set_result(group_id)
        elif not pending.last.done():
            pending.last.set_result(group_id)

    def refused(self, ticket: int, refusal: RequestRefused) -> None:
        """One was refused."""
        pending = self._pending.get(ticket)
        if pending is None:
            return
        answer = pending.last or pending.first
        if not answer.done():
            answer.set_exception(refusal)

    def cancel(self) -> None:
        """Nobody answers any more."""
        for pending in self._pending.values():
            (pending.last or pending.first).cancel()

    def waiting(self) -> dict[int, str]:
        """Tickets of those that wait, and their requests' ids."""
        return {
            ticket: pending.request_id
            for ticket, pending in self._pending.items()
            if pending.last is not None and not pending.last.done()
        }
