"""The engine's door: ingresses that submit requests and read their news.

Owns which connection each live request belongs to. A connection that ends frees its requests'
blocks at once; an engine that is lost hangs up on everyone, which ends their streams. Knows no Ray
and no gRPC.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from blockyard.cluster.books.arrival_log import ArrivalLog
from blockyard.cluster.chaos.faults import Disturb, disturbed
from blockyard.cluster.engine import Engine
from blockyard.cluster.engine_books import AskMemory, EngineBooks
from blockyard.cluster.engine_reader import EngineReader
from blockyard.cluster.group import Group
from blockyard.cluster.messages import (
    Abort,
    ArrivalsAnswer,
    AskArrivals,
    AskLedger,
    AskYard,
    IngressToEngine,
    Lost,
    Refused,
    Resume,
    Submit,
    Submitted,
)
from blockyard.cluster.moves.block_moves import BlockMoves
from blockyard.cluster.relief import Yielded
from blockyard.cluster.request_desk import RequestDesk
from blockyard.cluster.served_request import AskRequests, RequestsAnswer
from blockyard.cluster.wire import Codec, Connection, Endpoint, Listener, WireError, listen
from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.making_way import order_ways_out, take_movers
from blockyard.scheduler.rank_facts import GroupFacts
from blockyard.scheduler.relief import choose_yielding, may_yield
from blockyard.scheduler.request import RequestRefused, RequestUpdate
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.standing import Standing, standing_of
from blockyard.scheduler.way_out import WayOut

__all__ = ["EngineServer"]

logger = logging.getLogger(__name__)

_LOST_MESSAGE = "the workers that ran this request were lost; send it again"


class EngineServer:
    """Serves one engine to many ingresses. Make it with `EngineServer.start`."""

    def __init__(
        self,
        scheduler: Scheduler,
        group: Group,
        on_change: Callable[[], None],
        facts: GroupFacts | None,
        ask_memory: AskMemory | None,
        repair: Callable[[], Awaitable[Group]] | None = None,
    ) -> None:
        self.disturb: Callable[[Disturb], str] | None = None
        """Makes faults, where they are allowed."""
        self._owners: dict[str, EngineReader] = {}
        self._readers: list[EngineReader] = []
        self._draining = False
        self._on_change = on_change
        self.engine = Engine(scheduler, group, self._deliver, self._lose, self._changed, repair)
        self.moves = BlockMoves(self.engine)
        self._loop_task: asyncio.Task[None] | None = None
        self._listener: Listener | None = None
        self._hanging_up: asyncio.Task[None] | None = None
        self._arrivals = ArrivalLog(scheduler.config.block_size)
        self.engine.listen(self._arrivals)
        self._desk = RequestDesk(self.engine, self._deliver)
        self._books = EngineBooks(self.engine, self.check, facts, ask_memory)

    @classmethod
    async def start(
        cls,
        scheduler: Scheduler,
        group: Group,
        host: str,
        on_change: Callable[[], None] = lambda: None,
        facts: GroupFacts | None = None,
        ask_memory: AskMemory | None = None,
        repair: Callable[[], Awaitable[Group]] | None = None,
    ) -> "EngineServer":
        """Listen on `host` and start to step.

        `on_change` is called when the books have changed; `facts` and `ask_memory`, which asks the
        ranks for their allocators, go into the books of who asks. For `repair` see `Engine`.
        """
        server = cls(scheduler, group, on_change, facts, ask_memory, repair)
        codec: Codec[IngressToEngine] = Codec(IngressToEngine)
        server._listener = await listen(codec, server._serve_ingress, host)
        server._loop_task = asyncio.create_task(server.engine.run(), name="engine-loop")
        return server

    @property
    def endpoint(self) -> Endpoint:
        """Where ingresses connect."""
        assert self._listener is not None
        return self._listener.endpoint

    @property
    def draining(self) -> bool:
        """Whether newcomers are refused."""
        return self._draining

    @property
    def lost(self) -> str | None:
        """Why this engine cannot step any more, or None."""
        return self.engine.lost

    def ledger(self) -> GroupLedger:
        """The books as they stand."""
        return self.engine.ledger()

    def standing(self) -> Standing | None:
        """Who waits and who would give way, where the group is full."""
        return standing_of(self.engine.scheduler)

    def start_drain(self) -> None:
        """Refuse newcomers; what was admitted goes on to its end."""
        self._draining = True
        self.engine.start_drain()

    def hand_over(self) -> int:
        """Let go of all that are left here, for whichever group has room; how many those are."""
        request_ids = tuple(self._owners)
        for request_id in request_ids:
            self._let_go(request_id, "")
        return len(request_ids)

    async def close(self) -> None:
        """Stop listening and stepping, whatever is still live; what was computed is delivered."""
        if self._listener is not None:
            await self._listener.close()
        if self._hanging_up is not None:
            await self._hanging_up
        self._books.close()
        await self.moves.close()
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)

    def yield_requests(self, taker: str, requests: int, tokens: int) -> int:
        """Let go of some that wait here, for their ingresses to take to a group that has room.

        How many those are; `requests` and `tokens` are the most. None while draining: then no
        other group takes them.
        """
        if self._draining:
            return 0
        chosen = choose_yielding(self.engine.scheduler, requests, tokens)
        for request_id in chosen:
            self._let_go(request_id, taker)
        return len(chosen)

    def pass_on(self, request_id: str, taker: str) -> int:
        """Let go of one that waits, for another group makes way for it; how many went."""
        if self._draining or not may_yield(self.engine.scheduler, request_id):
            return 0
        self._let_go(request_id, taker)
        return 1

    def make_way(self, beneficiary: str, ways: Sequence[WayOut]) -> None:
        """Note how some go who run here, should they be preempted for that request."""
        if not self._draining:
            order_ways_out(self.engine.scheduler, beneficiary, ways)

    def drop_wires(self) -> None:
        """Hang up on every ingress; each may come back."""
        for reader in self._readers:
            reader.connection.abort()

    def check(self) -> None:
        """Prove the engine's invariants, and that each owned request is owned once."""
        self.engine.check()
        for request_id, reader in self._owners.items():
            if request_id not in reader.request_ids:
                raise AssertionError(f"request {request_id} is missing in its reader's list")
            if not self.engine.serves(request_id):
                raise AssertionError(f"request {request_id} is owned but not served")

    async def _serve_ingress(self, connection: Connection[IngressToEngine]) -> None:
        reader = EngineReader(connection)
        self._readers.append(reader)
        sender = asyncio.create_task(self._send(reader), name="engine-sender")
        try:
            while (message := await connection.receive()) is not None:
                self._take(reader, message)
        except WireError as error:
            logger.warning("an ingress spoke out of turn: %s", error)
        except asyncio.CancelledError:
            # We are closing, perhaps at the end of a drain: nothing computed is kept back.
            reader.post_news()
            if self.lost is not None:
                connection.post(Lost(_LOST_MESSAGE))
            raise
        finally:
            self._readers.remove(reader)
            sender.cancel()
            for request_id in list(reader.request_ids):
                self._abort(reader, request_id, None)

    def _take(self, reader: EngineReader, message: IngressToEngine) -> None:
        match message:
            case Submit() | Resume():
                reader.connection.post(self._submit(reader, message))
            case Abort(request_id, choice):
                self._abort(reader, request_id, choice)
            case AskLedger():
                self._books.answer(reader.connection, message)
            case AskRequests(ticket, tenant, name, call_off):
                ask = self._desk.call_off if call_off else self._desk.find
                reader.connection.post(RequestsAnswer(ticket, ask(tenant, name)))
            case AskArrivals(ticket, after):
                steps = self.engine.step_log.take()
                batch = replace(self._arrivals.take(after), steps=steps)
                reader.connection.post(ArrivalsAnswer(ticket, batch))
            case Disturb():
                reader.connection.post(disturbed(message, self.disturb))
            case AskYard():
                self._books.draw(reader.connection, message)

    def _submit(self, reader: EngineReader, message: Submit | Resume) -> Submitted | Refused:
        try:
            if isinstance(message, Submit):
                spec, max_tokens = message.spec, self.engine.submit(message.spec)
            else:
                spec, max_tokens = message.snapshot.spec, message.snapshot.max_tokens
                self.engine.resume(message.snapshot)
                if message.snapshot.has_started or message.consignment is not None:
                    self.moves.bring(spec.request_id, message.consignment)
        except RequestRefused as refusal:
            return Refused(message.ticket, refusal.code, refusal.message, refusal.field)
        self._owners[spec.request_id] = reader
        reader.request_ids.add(spec.request_id)
        return Submitted(message.ticket, None if spec.sampling.max_tokens else max_tokens)

    def _abort(self, reader: EngineReader, request_id: str, choice: int | None) -> None:
        # Even of a request that has ended: its last news must not be taken for a later namesake's.
        reader.outbox.discard(request_id, choice)
        if self._owners.get(request_id) is reader:
            self.engine.abort(request_id, choice)
            self._forget_ended(request_id)

    def _forget_ended(self, request_id: str) -> None:
        """Nobody owns a request of which every choice has ended."""
        if request_id in self._owners and not self.engine.serves(request_id):
            reader = self._owners.pop(request_id)
            reader.request_ids.discard(request_id)

    def _let_go(self, request_id: str, taker: str) -> None:
        """Have its ingress take a request to another group, with its blocks if that is cheaper."""
        reader = self._owners[request_id]
        reader.post_news()  # all that was produced here comes before
        consignment = self.moves.send_off(request_id)
        reader.connection.post(Yielded(request_id, taker, consignment))
        self._abort(reader, request_id, None)

    def _deliver(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            reader = self._owners.get(update.request_id)
            if reader is not None:
                reader.outbox.put(update)
        # Only now: several choices may have ended in one step.
        for update in updates:
            if update.finish_reason is not None:
                self._forget_ended(update.request_id)
        for mover in take_movers(self.engine.scheduler):
            if not self._draining:
                self._let_go(mover.request_id, mover.taker)

    def _changed(self) -> None:
        self.moves.note_change()
        self._on_change()

    def _lose(self) -> None:
        if self._listener is not None:
            self._hanging_up = asyncio.create_task(self._listener.close(), name="engine-hangs-up")

    async def _send(self, reader: EngineReader) -> None:
        try:
            while True:
                await reader.outbox.wait()
                reader.post_news()
                await reader.connection.drain()
        except Exception as error:
            # Gone, or not to be told: hanging up ends its streams, silence would not.
            logger.warning("an ingress is cut off: %r", error)
            reader.connection.abort()
