"""An ingress's connection to one engine, and the streams of requests that run there.

Updates that arrive while a stream's reader is slow are merged, so a stream holds at most one
undelivered update. Losing the engine ends every stream with UNAVAILABLE, and so does an engine
that does not answer a submission in time. Knows no gRPC, no Ray. Units: seconds.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from itertools import count

from blockyard.cluster.books.group_books import GroupBooks
from blockyard.cluster.messages import (
    Abort,
    AskLedger,
    EngineToIngress,
    GroupIdentity,
    LedgerAnswer,
    Lost,
    Refused,
    Submit,
    Submitted,
    Updates,
)
from blockyard.cluster.outbox import merge_updates
from blockyard.cluster.wire import Codec, Connection, Endpoint, WireError, connect
from blockyard.scheduler.request import (
    RefusalCode,
    RequestRefused,
    RequestSpec,
    RequestUpdate,
)

__all__ = ["ANSWER_SECONDS", "EngineLink", "EngineStream"]

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""An engine answers between two steps; one that does not in this time is stuck."""

_GONE_MESSAGE = "the engine that ran this request is gone; send it again"
_SILENT_MESSAGE = "the group does not answer at the moment; try again shortly"


class EngineStream:
    """News of one request. Implements `dispatch.TokenStream`."""

    def __init__(self, link: "EngineLink", spec: RequestSpec) -> None:
        self.request_id = spec.request_id
        self._link = link
        self._updates: dict[int, RequestUpdate] = {}
        # Choices whose last word has not come.
        self._live = set(range(spec.num_choices))
        self._refusal: RequestRefused | None = None
        self._news = asyncio.Event()
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def ended(self) -> bool:
        """Whether the engine will say nothing more that anybody wants to hear."""
        return not self._live

    def put(self, update: RequestUpdate) -> None:
        """Add what the engine sent."""
        choice = update.choice
        if choice not in self._live:
            return  # said before it heard that nobody wants this one any more
        if update.finish_reason is not None:
            self._live.discard(choice)
        earlier = self._updates.get(choice)
        self._updates[choice] = update if earlier is None else merge_updates(earlier, update)
        self._news.set()

    def refuse(self, refusal: RequestRefused) -> None:
        """End the stream, after what was put: the engine did not take the request, or lost it."""
        if not self.accepted.done():
            self.accepted.set_exception(refusal)
            return
        self._refusal = refusal
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[RequestUpdate]:
        """Iterate over updates until every choice has ended or was aborted.

        Raises:
            RequestRefused: the engine was lost.
        """
        while True:
            if self._updates:
                yield self._updates.pop(next(iter(self._updates)))
            elif self.ended:
                return
            elif self._refusal is not None:
                raise self._refusal
            else:
                self._news.clear()
                await self._news.wait()

    async def abort(self, choice: int | None = None) -> None:
        """Free the blocks of the request, or of one choice. Safe in any state and twice."""
        if choice is None:
            self._updates.clear()
            self._live.clear()
            self._link.abort(self)
        else:
            self._updates.pop(choice, None)
            if choice in self._live:
                self._live.discard(choice)
                self._link.abort(self, choice)
        self._news.set()


class EngineLink:
    """One engine as an ingress sees it. Make it with `EngineLink.connect`."""

    def __init__(self, identity: GroupIdentity, connection: Connection[EngineToIngress]) -> None:
        self.identity = identity
        self._connection = connection
        self._streams: dict[str, EngineStream] = {}
        self._submissions: dict[int, EngineStream] = {}
        self._ledgers: dict[int, asyncio.Future[GroupBooks]] = {}
        self._tickets = count(1)
        self._open = True
        self._gone_message = _GONE_MESSAGE
        self._reader = asyncio.create_task(self._read(), name="engine-link")

    @classmethod
    async def connect(cls, identity: GroupIdentity) -> "EngineLink":
        """Connect to a group's engine.

        Raises:
            OSError: it is not there, or does not answer in time.
        """
        endpoint = Endpoint(identity.host, identity.port, identity.secret)
        codec: Codec[EngineToIngress] = Codec(EngineToIngress)
        return cls(identity, await connect(endpoint, codec))

    @property
    def open(self) -> bool:
        """Whether the engine is still there."""
        return self._open

    @property
    def num_streams(self) -> int:
        """Requests of this ingress that are live there."""
        return len(self._streams)

    async def submit(self, spec: RequestSpec) -> EngineStream:
        """Hand over a request and wait until the engine has taken it.

        Raises:
            RequestRefused: the engine did not take it, does not answer, or is gone.
        """
        if not self._open:
            raise RequestRefused(RefusalCode.UNAVAILABLE, self._gone_message)
        if spec.request_id in self._streams:
            raise RequestRefused(
                RefusalCode.INVALID,
                f"{spec.request_id!r} is the id of a request that still runs; choose another",
                "request_id",
            )
        stream = EngineStream(self, spec)
        ticket = next(self._tickets)
        self._streams[spec.request_id] = self._submissions[ticket] = stream
        try:
            self._connection.post(Submit(ticket, spec))
            async with asyncio.timeout(ANSWER_SECONDS):
                await stream.accepted
        except BaseException as error:
            self.abort(stream)
            if isinstance(error, TimeoutError):
                raise RequestRefused(RefusalCode.UNAVAILABLE, _SILENT_MESSAGE) from None
            raise
        finally:
            del self._submissions[ticket]
        return stream

    def abort(self, stream: EngineStream, choice: int | None = None) -> None:
        """Tell the engine, unless the stream has ended already."""
        if self._streams.get(stream.request_id) is not stream:
            return
        if choice is None or stream.ended:
            self._forget(stream)
        if self._open:
            self._connection.post(Abort(stream.request_id, choice))

    async def books(self, audit: bool = False, memory: bool = False) -> GroupBooks:
        """The engine's books, asked for now; see `GroupBooks` for the two that cost more.

        Raises:
            RequestRefused: the engine does not answer, or is gone.
        """
        if not self._open:
            raise RequestRefused(RefusalCode.UNAVAILABLE, self._gone_message)
        ticket = next(self._tickets)
        answer: asyncio.Future[GroupBooks] = asyncio.get_running_loop().create_future()
        self._ledgers[ticket] = answer
        self._connection.post(AskLedger(ticket, audit, memory))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            raise RequestRefused(RefusalCode.UNAVAILABLE, _SILENT_MESSAGE) from None
        finally:
            del self._ledgers[ticket]

    async def close(self) -> None:
        """Hang up; the engine frees whatever ran for this ingress."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        # A reader that was cancelled before its first step has not done this.
        self._end()
        await self._connection.close()

    async def _read(self) -> None:
        try:
            while (message := await self._connection.receive()) is not None:
                self._take(message)
        except WireError as error:
            logger.warning("engine %s spoke out of turn: %s", self.identity.group_id, error)
        finally:
            self._end()
            await self._connection.close()

    def _take(self, message: EngineToIngress) -> None:
        match message:
            case Updates(updates):
                for update in updates:
                    self._take_update(update)
            case Submitted(ticket):
                stream = self._submissions.get(ticket)
                if stream is not None and not stream.accepted.done():
                    stream.accepted.set_result(None)
            case Refused(ticket, code, text, field):
                stream = self._submissions.get(ticket)
                if stream is not None and self._forget(stream):
                    stream.refuse(RequestRefused(code, text, field))
            case Lost(text):
                self._gone_message = text
            case LedgerAnswer(ticket, books):
                answer = self._ledgers.get(ticket)
                if answer is not None and not answer.done():
                    answer.set_result(books)

    def _take_update(self, update: RequestUpdate) -> None:
        stream = self._streams.get(update.request_id)
        # News of a request that was not accepted yet is of an aborted one of the same id.
        if stream is None or not stream.accepted.done():
            return
        stream.put(update)
        if stream.ended:
            self._forget(stream)

    def _forget(self, stream: EngineStream) -> bool:
        """Take a stream off the list; False when it is not, or no longer, on it."""
        if self._streams.get(stream.request_id) is not stream:
            return False
        del self._streams[stream.request_id]
        return True

    def _end(self) -> None:
        self._open = False
        gone = RequestRefused(RefusalCode.UNAVAILABLE, self._gone_message)
        for stream in self._streams.values():
            stream.refuse(gone)
        self._streams.clear()
        for answer in self._ledgers.values():
            if not answer.done():
                answer.set_exception(gone)
