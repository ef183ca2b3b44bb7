"""An ingress's connection to one engine, and the streams of requests that run there.

Updates that arrive while a stream's reader is slow are merged, so a stream holds at most one
undelivered update. Losing the engine ends every stream with UNAVAILABLE. Knows no gRPC, no Ray.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from itertools import count

from blockyard.cluster.messages import (
    Abort,
    AskLedger,
    EngineToIngress,
    GroupIdentity,
    LedgerAnswer,
    Refused,
    Submit,
    Submitted,
    Updates,
)
from blockyard.cluster.outbox import merge_updates
from blockyard.cluster.wire import Codec, Connection, Endpoint, WireError, connect
from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.request import (
    RefusalCode,
    RequestRefused,
    RequestSpec,
    RequestUpdate,
)

__all__ = ["EngineLink", "EngineStream"]

logger = logging.getLogger(__name__)

_GONE_MESSAGE = "the engine that ran this request is gone; send it again"


class EngineStream:
    """News of one request. Implements `dispatch.TokenStream`."""

    def __init__(self, link: "EngineLink", request_id: str) -> None:
        self._link = link
        self._request_id = request_id
        self._update: RequestUpdate | None = None
        self._refusal: RequestRefused | None = None
        self._news = asyncio.Event()
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, update: RequestUpdate) -> None:
        """Add what the engine sent."""
        self._update = update if self._update is None else merge_updates(self._update, update)
        self._news.set()

    def refuse(self, refusal: RequestRefused) -> None:
        """End the stream: the engine did not take the request, or lost it."""
        if not self.accepted.done():
            self.accepted.set_exception(refusal)
            return
        self._refusal = refusal
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[RequestUpdate]:
        """Iterate over updates until the request ends.

        Raises:
            RequestRefused: the engine was lost.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            update, self._update = self._update, None
            if update is not None:
                yield update
                if update.finish_reason is not None:
                    return
            if self._refusal is not None:
                raise self._refusal

    async def abort(self) -> None:
        """Free the request's blocks. Safe in any state, safe to call twice."""
        self._link.abort(self._request_id, self)


class EngineLink:
    """One engine as an ingress sees it. Make it with `EngineLink.connect`."""

    def __init__(self, identity: GroupIdentity, connection: Connection[EngineToIngress]) -> None:
        self.identity = identity
        self._connection = connection
        self._streams: dict[str, EngineStream] = {}
        self._ledgers: dict[int, asyncio.Future[GroupLedger]] = {}
        self._tickets = count(1)
        self._open = True
        self._reader = asyncio.create_task(self._read(), name="engine-link")

    @classmethod
    async def connect(cls, identity: GroupIdentity) -> "EngineLink":
        """Connect to a group's engine.

        Raises:
            OSError: it is not there.
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
            RequestRefused: the engine did not take it, or is gone.
        """
        if not self._open:
            raise RequestRefused(RefusalCode.UNAVAILABLE, _GONE_MESSAGE)
        if spec.request_id in self._streams:
            raise RequestRefused(
                RefusalCode.INVALID,
                f"{spec.request_id!r} is the id of a request that still runs; choose another",
                "request_id",
            )
        stream = EngineStream(self, spec.request_id)
        self._streams[spec.request_id] = stream
        self._connection.post(Submit(spec))
        try:
            await stream.accepted
        except BaseException:
            self.abort(spec.request_id, stream)
            raise
        return stream

    def abort(self, request_id: str, stream: EngineStream) -> None:
        """Tell the engine, unless the stream has ended already."""
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            if self._open:
                self._connection.post(Abort(request_id))

    async def ledger(self) -> GroupLedger:
        """The engine's books, asked for now.

        Raises:
            RequestRefused: the engine is gone.
        """
        if not self._open:
            raise RequestRefused(RefusalCode.UNAVAILABLE, _GONE_MESSAGE)
        ticket = next(self._tickets)
        answer: asyncio.Future[GroupLedger] = asyncio.get_running_loop().create_future()
        self._ledgers[ticket] = answer
        self._connection.post(AskLedger(ticket))
        try:
            return await answer
        finally:
            self._ledgers.pop(ticket, None)

    async def close(self) -> None:
        """Hang up; the engine frees whatever ran for this ingress."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while (message := await self._connection.receive()) is not None:
                match message:
                    case Updates(updates):
                        for update in updates:
                            self._take(update)
                    case Submitted(request_id):
                        stream = self._streams.get(request_id)
                        if stream is not None and not stream.accepted.done():
                            stream.accepted.set_result(None)
                    case Refused(request_id, code, text, field):
                        stream = self._streams.pop(request_id, None)
                        if stream is not None:
                            stream.refuse(RequestRefused(code, text, field))
                    case LedgerAnswer(ticket, ledger):
                        answer = self._ledgers.get(ticket)
                        if answer is not None and not answer.done():
                            answer.set_result(ledger)
        except WireError as error:
            logger.warning("engine %s spoke out of turn: %s", self.identity.group_id, error)
        finally:
            self._end()
            await self._connection.close()

    def _take(self, update: RequestUpdate) -> None:
        stream = self._streams.get(update.request_id)
        # Until it is accepted, news under this id is of an earlier, aborted request of that name.
        if stream is None or not stream.accepted.done():
            return
        if update.finish_reason is not None:
            del self._streams[update.request_id]
        stream.put(update)

    def _end(self) -> None:
        self._open = False
        gone = RequestRefused(RefusalCode.UNAVAILABLE, _GONE_MESSAGE)
        for stream in self._streams.values():
            stream.refuse(gone)
        self._streams.clear()
        for answer in self._ledgers.values():
            if not answer.done():
                answer.set_exception(gone)
