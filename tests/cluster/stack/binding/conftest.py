"""A central scheduler with a test in the place of engines and ingresses."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from blockyard.cluster.central import CentralScheduler
from blockyard.cluster.messages import (
    AskGroups,
    Bind,
    Bound,
    Drain,
    GroupIdentity,
    Join,
    ToIngress,
)
from blockyard.cluster.wire import Codec, Connection, connect
from blockyard.scheduler.group_board import LEAST_LEAD
from blockyard.scheduler.ledger import BlockCounts, GroupLedger, RequestCounts, SlotCounts
from blockyard.scheduler.under_way import UnderWay
from blockyard.workers.description import ModelDescription

MODEL = ModelDescription("small", "/nowhere", "Witness", 64, 99, ())
PLACES = 2
Peer = Connection[Drain | ToIngress]


def books(
    running: int = PLACES, waiting: int = 0, free: int = 50, queued: int = 0, rate: float = 0.0
) -> GroupLedger:
    return GroupLedger(
        blocks=BlockCounts(total=50, free=free, cached=0, active=50 - free, fenced=0),
        slots=SlotCounts(filled=4 * (50 - free), promised=0, empty_tail=0),
        requests=RequestCounts(running=running, waiting=waiting, parked=0),
        block_size=4,
        step=0,
        preemptions=0,
        stalled_steps=0,
        queued_tokens=queued,
        prefill_tokens_per_second=rate,
    )


class World:
    """A central scheduler, an ingress that it answers, and groups of two places."""

    books = staticmethod(books)

    @staticmethod
    async def told(ingress: Peer) -> Any:
        """The next answer, news of groups left out."""
        while type(answer := await ingress.receive()).__name__ == "Groups":
            pass
        return answer

    def __init__(self) -> None:
        self.now = 1000.0
        self.central = CentralScheduler(clock=lambda: self.now)
        self.peers: list[Peer] = []
        self.tickets = 0

    async def dial(self) -> Peer:
        codec: Codec[Drain | ToIngress] = Codec(Drain | ToIngress)
        self.peers.append(await connect(self.central.endpoint, codec))
        return self.peers[-1]

    async def ingress(self) -> Peer:
        peer = await self.dial()
        peer.post(AskGroups())
        await peer.receive()
        return peer

    async def group(
        self,
        name: str,
        ledger: GroupLedger | None = None,
        under_way: tuple[UnderWay, ...] = (),
        **told: Any,
    ) -> Peer:
        told = {"places": PLACES, "max_waiting": 100, **told}
        identity = GroupIdentity(name, MODEL, "cpu", "int64", 4, "127.0.0.1", 1, b"", **told)
        peer = await self.dial()
        before = self.central._members.get(name)
        peer.post(Join(identity, ledger or books(), False, under_way=under_way))
        while self.central._members.get(name) is before:
            await asyncio.sleep(0.001)
        return peer

    async def ask(self, ingress: Peer, **told: Any) -> Any:
        """The first answer to one more request; its ticket is `world.tickets`."""
        self.tickets += 1
        asked = Bind(self.tickets, "small", 4, request_id=f"r{self.tickets}")
        ingress.post(replace(asked, **told))
        return await self.told(ingress)

    async def fill(self, ingress: Peer, count: int = LEAST_LEAD) -> None:
        """Have a group's own queue as long as it may be."""
        for _ in range(count):
            assert isinstance(await self.ask(ingress), Bound)

    async def until(self, condition: Any) -> None:
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.central.start("127.0.0.1")
    yield made
    made.central.check()
    for peer in made.peers:
        await peer.close()
    await made.central.close()
