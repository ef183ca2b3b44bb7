"""An ingress's connection to one engine, and which request's news goes to which stream.

Losing the engine ends every stream with UNAVAILABLE, and so does an engine that does not answer a
submission in time. Knows no gRPC, no Ray. Units: seconds.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import count
from typing import TypeVar

from blockyard.cluster.books.arrival_log import ArrivalBatch
from blockyard.cluster.books.group_books import GroupBooks
from blockyard.cluster.chaos.faults import Disturb, Disturbed, Fault
from blockyard.cluster.engine_stream import EngineStream, first_words_first
from blockyard.cluster.messages import (
    Abort,
    ArrivalsAnswer,
    AskArrivals,
    AskLedger,
    AskYard,
    EngineToIngress,
    GroupIdentity,
    LedgerAnswer,
    Lost,
    Refused,
    Resume,
    Submit,
    Submitted,
    Updates,
    YardAnswer,
)
from blockyard.cluster.moves.consignment import Consignment
from blockyard.cluster.open_questions import OpenQuestions, Ticketed
from blockyard.cluster.relief import RequestMoved, Yielded
from blockyard.cluster.served_request import AskRequests, RequestsAnswer, ServedRequest
from blockyard.cluster.wire import Codec, Connection, Endpoint, WireError, connect
from blockyard.scheduler.request import (
    RefusalCode,
    RequestRefused,
    RequestSpec,
    RequestUpdate,
)
from blockyard.scheduler.snapshot import RequestSnapshot
from blockyard.scheduler.yard_map import YardMap

__all__ = ["ANSWER_SECONDS", "EngineLink"]

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=Ticketed)

ANSWER_SECONDS = 5.0
"""An engine answers between two steps; one that does not in this time is stuck."""

_GONE_MESSAGE = "the engine that ran this request is gone; send it again"
_SILENT_MESSAGE = "the group does not answer at the moment; try again shortly"


class EngineLink:
    """One engine as an ingress sees it. Make it with `EngineLink.connect`."""

    def __init__(self, identity: GroupIdentity, connection: Connection[EngineToIngress]) -> None:
        self.identity = identity
        self._connection = connection
        self._streams: dict[str, EngineStream] = {}
        self._submissions: dict[int, EngineStream] = {}
        self._questions = OpenQuestions()
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
        choices = range(spec.num_choices)
        return await self._hand_over(spec.request_id, choices, lambda t: Submit(t, spec))

    async def resume(
        self, snapshot: RequestSnapshot, consignment: Consignment | None = None
    ) -> EngineStream:
        """Hand over a request that another engine served. Raises like `submit`."""
        request_id, choices = snapshot.spec.request_id, snapshot.numbers
        return await self._hand_over(
            request_id, choices, lambda t: Resume(t, snapshot, consignment)
        )

    async def _hand_over(
        self, request_id: str, choices: Iterable[int], ask: Callable[[int], Submit | Resume]
    ) -> EngineStream:
        if not self._open:
            raise RequestRefused(RefusalCode.UNAVAILABLE, self._gone_message)
        if request_id in self._streams:
            raise RequestRefused(
                RefusalCode.INVALID,
                f"{request_id!r} is the id of a request that still runs; choose another",
                "request_id",
            )
        stream = EngineStream(request_id, choices, self.abort)
        ticket = next(self._tickets)
        self._streams[request_id] = self._submissions[ticket] = stream
        try:
            self._connection.post(ask(ticket))
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
        return (await self._ask(LedgerAnswer, lambda t: AskLedger(t, audit, memory))).books

    async def draw_yard(self, max_cells: int) -> YardMap:
        """A picture of the engine's pool in at most so many cells. Raises like `books`."""
        return (await self._ask(YardAnswer, lambda ticket: AskYard(ticket, max_cells))).yard

    async def arrivals(self, after: int) -> ArrivalBatch:
        """Requests that have ended there; see `ArrivalLog.take`. Raises like `books`."""
        return (await self._ask(ArrivalsAnswer, lambda ticket: AskArrivals(ticket, after))).batch

    async def requests(self, tenant: str, name: str, call_off: bool) -> tuple[ServedRequest, ...]:
        """A tenant's requests with a name there, ended if so. Raises like `books`."""
        asked = self._ask(RequestsAnswer, lambda t: AskRequests(t, tenant, name, call_off))
        return (await asked).requests

    async def disturb(self, fault: Fault, rank: int, seconds: float) -> str:
        """Have the group disturbed; what was done. Raises like `books`.

        Raises:
            LookupError: the engine does not allow it, or has no such rank.
        """
        answer = await self._ask(Disturbed, lambda t: Disturb(t, fault, rank, seconds))
        if answer.refused:
            raise LookupError(answer.refused)
        return answer.done

    async def _ask(
        self,
        kind: type[Answer],
        question: Callable[[int], AskLedger | AskYard | AskArrivals | AskRequests | Disturb],
    ) -> Answer:
        if not self._open:
            raise RequestRefused(RefusalCode.UNAVAILABLE, self._gone_message)
        ticket = next(self._tickets)
        with self._questions.asked(ticket, kind) as answer:
            self._connection.post(question(ticket))
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await answer
            except TimeoutError:
                raise RequestRefused(RefusalCode.UNAVAILABLE, _SILENT_MESSAGE) from None

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
                for update in first_words_first(updates, self._streams):
                    self._take_update(update)
            case Submitted(ticket, max_tokens):
                stream = self._submissions.get(ticket)
                if stream is not None and not stream.accepted.done():
                    stream.accepted.set_result(max_tokens)
            case Refused(ticket, code, text, field):
                stream = self._submissions.get(ticket)
                if stream is not None and self._forget(stream):
                    stream.refuse(RequestRefused(code, text, field))
            case Yielded(request_id, taker, consignment):
                stream = self._streams.get(request_id)
                if stream is not None and self._forget(stream):
                    stream.refuse(RequestMoved(taker, consignment))
            case Lost(text):
                self._gone_message = text
            case LedgerAnswer() | YardAnswer() | ArrivalsAnswer() | RequestsAnswer() | Disturbed():
                self._questions.settle(message)

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
        self._questions.end(gone)
