"""An ingress among groups and a central scheduler that do what a test tells them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from blockyard.cluster import standing_link
from blockyard.cluster.books.group_books import GroupBooks
from blockyard.cluster.ingress import ClusterDispatcher
from blockyard.cluster.messages import (
    Abort,
    AskGroups,
    AskLedger,
    Bind,
    Bound,
    GroupIdentity,
    Groups,
    IngressToEngine,
    LedgerAnswer,
    Refused,
    Submit,
    Submitted,
    ToCentral,
    Unbound,
)
from blockyard.cluster.wire import Codec, Connection, Endpoint, Listener, listen
from blockyard.scheduler.ledger import BlockCounts, GroupLedger, RequestCounts, SlotCounts
from blockyard.scheduler.request import RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.description import ModelDescription

MODEL = ModelDescription("small", "/nowhere", "Witness", 64, 99, ())
LEDGER = GroupLedger(
    blocks=BlockCounts(total=1, free=1, cached=0, active=0, fenced=0),
    slots=SlotCounts(filled=0, promised=0, empty_tail=0),
    requests=RequestCounts(running=0, waiting=0, parked=0),
    block_size=4,
    step=0,
    preemptions=0,
    stalled_steps=0,
)


def spec(request_id: str) -> RequestSpec:
    return RequestSpec(request_id, (1, 2, 3), SamplingParams(max_tokens=9))


class Group:
    """An engine that takes everything, unless it is told to refuse or to be silent."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.taken: list[str] = []
        self.aborted: list[str] = []
        self.refusal: Refused | None = None
        self.silent = False
        self.wires: list[Connection[IngressToEngine]] = []
        self.listener: Listener
        self.identity: GroupIdentity

    async def start(self) -> None:
        codec: Codec[IngressToEngine] = Codec(IngressToEngine)
        self.listener = await listen(codec, self._serve)
        end = self.listener.endpoint
        self.identity = GroupIdentity(
            self.group_id, MODEL, "cpu", "int64", 4, end.host, end.port, end.secret
        )

    async def _serve(self, connection: Connection[IngressToEngine]) -> None:
        self.wires.append(connection)
        while (message := await connection.receive()) is not None:
            match message:
                case Abort(request_id):
                    self.aborted.append(request_id)
                case _ if self.silent:
                    pass
                case Submit(ticket) if self.refusal is not None:
                    refusal = self.refusal
                    connection.post(Refused(ticket, refusal.code, refusal.message, refusal.field))
                case Submit(ticket, taken):
                    self.taken.append(taken.request_id)
                    connection.post(Submitted(ticket))
                case AskLedger(ticket):
                    connection.post(LedgerAnswer(ticket, GroupBooks(LEDGER)))


class World:
    """One ingress, a central scheduler that binds where it is told, and two groups."""

    def __init__(self) -> None:
        self.groups = [Group("a"), Group("b")]
        self.bind_to: str | Unbound | None = "a"
        self.calls = 0
        self.central: Connection[ToCentral] | None = None
        self.listener: Listener | None = None
        self.dispatcher = ClusterDispatcher((MODEL,), self._locate)
        self.running: asyncio.Task[None]

    async def start(self) -> None:
        for group in self.groups:
            await group.start()
        codec: Codec[ToCentral] = Codec(ToCentral)
        self.listener = await listen(codec, self._serve)
        self.running = asyncio.create_task(self.dispatcher.run())
        await self.until_groups("a", "b")

    async def tell(self, *group_ids: str, draining: bool = False) -> None:
        assert self.central is not None
        told = tuple(group.identity for group in self.groups if group.group_id in group_ids)
        self.central.post(Groups(told, draining))

    async def until_groups(self, *group_ids: str) -> None:
        while self.dispatcher.group_ids != group_ids:
            await asyncio.sleep(0.001)

    async def lose_central(self) -> None:
        assert self.listener is not None
        await self.listener.close()
        self.listener = None
        while self.dispatcher.linked:
            await asyncio.sleep(0.001)

    async def submit(self, request_id: str) -> None:
        await self.dispatcher.submit("small", spec(request_id))

    async def close(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.dispatcher.close()
        for group in self.groups:
            await group.listener.close()
        if self.listener is not None:
            await self.listener.close()

    async def _locate(self) -> Endpoint:
        if self.listener is None:
            raise ConnectionError("down")
        return self.listener.endpoint

    async def _serve(self, connection: Connection[ToCentral]) -> None:
        self.calls += 1
        self.central = connection
        while (message := await connection.receive()) is not None:
            match message:
                case AskGroups():
                    await self.tell("a", "b")
                case Bind(ticket, "small", 3):
                    if isinstance(self.bind_to, Unbound):
                        connection.post(Unbound(ticket, self.bind_to.code, self.bind_to.message))
                    elif self.bind_to is not None:
                        connection.post(Bound(ticket, self.bind_to))


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(standing_link, "_FIRST_RETRY_SECONDS", 0.001)
    made = World()
    await made.start()
    yield made
    await made.close()
