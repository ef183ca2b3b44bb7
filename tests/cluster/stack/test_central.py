"""The central scheduler, with a test in the place of every engine and ingress."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from blockyard.cluster.central import CentralScheduler
from blockyard.cluster.member import BINDING_SECONDS
from blockyard.cluster.messages import (
    AskGroups,
    Bind,
    Bound,
    Drain,
    GroupIdentity,
    Groups,
    Join,
    LedgerPush,
    ToIngress,
    Unbound,
)
from blockyard.cluster.wire import Codec, Connection, connect
from blockyard.scheduler.block_keys import NO_EXTRAS, block_keys
from blockyard.scheduler.ledger import BlockCounts, GroupLedger, RequestCounts, SlotCounts
from blockyard.scheduler.request import RefusalCode
from blockyard.workers.description import ModelDescription

pytestmark = pytest.mark.timeout(30)

MODEL = ModelDescription("small", "/nowhere", "Witness", 64, 99, ())


def identity(group_id: str) -> GroupIdentity:
    return GroupIdentity(group_id, MODEL, "cpu", "int64", 4, "127.0.0.1", 1, b"secret")


def books(free: int = 10, running: int = 0, waiting: int = 0, parked: int = 0) -> GroupLedger:
    return GroupLedger(
        blocks=BlockCounts(total=free, free=free, cached=0, active=0, fenced=0),
        slots=SlotCounts(filled=0, promised=0, empty_tail=0),
        requests=RequestCounts(running=running, waiting=waiting, parked=parked),
        block_size=4,
        step=0,
        preemptions=0,
        stalled_steps=0,
    )


class World:
    """A central scheduler and whoever talks to it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.central = CentralScheduler(clock=lambda: self.now)
        self._connections: list[Connection[Drain | ToIngress]] = []

    async def dial(self) -> Connection[Drain | ToIngress]:
        codec: Codec[Drain | ToIngress] = Codec(Drain | ToIngress)
        self._connections.append(await connect(self.central.endpoint, codec))
        return self._connections[-1]

    async def join(
        self, group_id: str, ledger: GroupLedger | None = None, draining: bool = False
    ) -> Connection[Drain | ToIngress]:
        engine = await self.dial()
        engine.post(Join(identity(group_id), ledger or books(), draining))
        while group_id not in self.central.group_ids:
            await asyncio.sleep(0.001)
        return engine

    async def bind(
        self,
        ingress: Connection[Drain | ToIngress],
        tokens: int = 4,
        model: str = "small",
        keys: tuple[bytes, ...] = (),
        block_size: int = 4,
    ) -> Bound | Unbound:
        ingress.post(Bind(7, model, tokens, keys, block_size))
        answer = await ingress.receive()
        assert isinstance(answer, Bound | Unbound) and answer.ticket == 7
        return answer

    async def until_groups(self, *group_ids: str) -> None:
        while self.central.group_ids != group_ids:
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()
        await self.central.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.central.start("127.0.0.1")
    yield made
    made.central.check()
    await made.close()


async def test_all_who_ask_at_once_are_told_of_one_listener() -> None:
    central = CentralScheduler()

    async def endpoint() -> object:
        await central.start("127.0.0.1")
        return central.endpoint

    endpoints = await asyncio.gather(*(endpoint() for _ in range(5)))
    assert all(one is endpoints[0] for one in endpoints)
    await central.close()


async def test_ingresses_hear_of_every_change_of_the_groups(world: World) -> None:
    ingress = await world.dial()
    ingress.post(AskGroups())
    assert await ingress.receive() == Groups((), False)
    first = await world.join("a")
    assert await ingress.receive() == Groups((identity("a"),), False)
    await world.join("b")
    assert await ingress.receive() == Groups((identity("a"), identity("b")), False)
    await first.close()
    assert await ingress.receive() == Groups((identity("b"),), False)


async def test_a_central_scheduler_that_goes_does_not_take_the_groups_with_it(
    world: World,
) -> None:
    await world.join("a")
    ingress = await world.dial()
    ingress.post(AskGroups())
    assert await ingress.receive() == Groups((identity("a"),), False)
    await world.central.close()
    assert await ingress.receive() is None


@pytest.mark.parametrize(
    "message", [LedgerPush(books(), False), Join(identity("again"), books(), False), Drain()]
)
async def test_who_speaks_out_of_turn_is_hung_up_on(world: World, message: object) -> None:
    if isinstance(message, Join):
        peer = await world.join("a")
    else:
        peer = await world.dial()
    peer.post(message)
    assert await peer.receive() is None
    await world.until_groups()


async def test_an_engine_that_joins_again_outlives_its_old_connection(world: World) -> None:
    old = await world.join("a", books(free=1))
    new = await world.join("a", books(free=100))
    ingress = await world.dial()
    ingress.post(AskGroups())
    await ingress.receive()
    old.post(LedgerPush(books(), True))  # a late word of the old connection is not of the group
    await old.close()
    await world.join("b", books(free=5))
    assert await ingress.receive() == Groups((identity("a"), identity("b")), False)
    assert await world.bind(ingress) == Bound(7, "a")
    await new.close()
    await world.until_groups("b")


async def test_a_request_is_bound_by_the_newest_books(world: World) -> None:
    await world.join("a", books(free=10))
    other = await world.join("b", books(free=5))
    ingress = await world.dial()
    assert await world.bind(ingress) == Bound(7, "a")
    other.post(LedgerPush(books(free=50), False))
    while await world.bind(ingress) != Bound(7, "b"):
        pass


async def test_what_is_bound_counts_until_new_books_come(world: World) -> None:
    first = await world.join("a", books(free=10))
    await world.join("b", books(free=9))
    ingress = await world.dial()
    assert await world.bind(ingress, tokens=8) == Bound(7, "a")
    assert await world.bind(ingress, tokens=8) == Bound(7, "b")
    assert await world.bind(ingress, tokens=8) == Bound(7, "a")
    first.post(LedgerPush(books(free=10), False))  # it has ended meanwhile
    while await world.bind(ingress, tokens=0) != Bound(7, "a"):
        pass


async def test_a_request_goes_where_most_of_its_prefix_is_known(world: World) -> None:
    keys = block_keys(tuple(range(32)), 4, NO_EXTRAS)
    first = await world.join("a", books(free=20))
    second = await world.join("b", books(free=20))
    ingress = await world.dial()
    first.post(LedgerPush(books(free=20), False, (), keys[:2]))
    second.post(LedgerPush(books(free=20), False, (), keys[:6]))
    while await world.bind(ingress, tokens=0, keys=keys) != Bound(7, "b"):
        pass
    # Keys of blocks of another size say nothing.
    assert await world.bind(ingress, tokens=0, keys=keys, block_size=8) == Bound(7, "a")
    second.post(LedgerPush(books(free=20), False, keys[1:6]))
    while await world.bind(ingress, tokens=0, keys=keys) != Bound(7, "a"):
        pass
    # Only what is not known counts as bound: 32 tokens less 2 blocks take 6 of 20 blocks.
    assert await world.bind(ingress, tokens=32, keys=keys) == Bound(7, "a")
    assert await world.bind(ingress, tokens=0) == Bound(7, "b")


async def test_an_engine_that_joins_tells_what_can_be_found_there(world: World) -> None:
    keys = block_keys(tuple(range(32)), 4, NO_EXTRAS)
    await world.join("a", books(free=20))
    engine = await world.dial()
    engine.post(Join(identity("b"), books(free=20), False, keys))
    await world.until_groups("a", "b")
    assert await world.bind(await world.dial(), keys=keys) == Bound(7, "b")


async def test_what_was_bound_and_never_arrived_is_forgotten(world: World) -> None:
    await world.join("a", books(free=10))
    await world.join("b", books(free=5))
    ingress = await world.dial()
    assert await world.bind(ingress, tokens=39) == Bound(7, "a")
    world.now += BINDING_SECONDS / 2
    assert await world.bind(ingress, tokens=1) == Bound(7, "b")
    world.now += BINDING_SECONDS + 0.1
    assert await world.bind(ingress, tokens=1) == Bound(7, "a")


async def test_nothing_is_bound_to_who_drains_nor_to_another_model(world: World) -> None:
    ingress = await world.dial()
    await world.join("a", draining=True)
    for model in ("small", "other"):
        refusal = await world.bind(ingress, model=model)
        assert isinstance(refusal, Unbound)
        assert refusal.code is RefusalCode.UNAVAILABLE and model in refusal.message
    engine = await world.join("b")
    assert await world.bind(ingress) == Bound(7, "b")
    engine.post(LedgerPush(books(), True))
    while isinstance(await world.bind(ingress), Bound):
        pass


async def test_a_drain_waits_for_every_kind_of_request_and_every_engine(world: World) -> None:
    first = await world.join("a", books(running=1))
    second = await world.join("b")
    ingress = await world.dial()
    ingress.post(AskGroups())
    await ingress.receive()
    draining = asyncio.create_task(world.central.drain(25))
    assert await first.receive() == Drain() == await second.receive()
    assert await ingress.receive() == Groups((identity("a"), identity("b")), True)
    assert isinstance(await world.bind(ingress), Unbound)

    late = await world.join("late")
    assert await late.receive() == Drain()
    await ingress.receive()

    async def push(engine: Connection[Drain | ToIngress], ledger: GroupLedger) -> None:
        """Push books, and wait until they and their consequences are dealt with."""
        engine.post(LedgerPush(ledger, True))
        assert isinstance(await world.bind(engine), Unbound)
        for _ in range(10):
            await asyncio.sleep(0)

    await push(second, books())
    await push(late, books(running=1))
    for ledger in (books(running=1), books(waiting=1), books(parked=1), books()):
        await push(first, ledger)
        assert not draining.done()
    await push(first, books(parked=1))
    await push(late, books())
    assert not draining.done()
    await push(first, books(waiting=1))
    assert not draining.done()
    await push(first, books())
    assert await draining


async def test_a_drain_waits_no_more_for_an_engine_that_has_gone(world: World) -> None:
    engine = await world.join("a", books(running=1))
    draining = asyncio.create_task(world.central.drain(25))
    assert await engine.receive() == Drain()
    await engine.close()
    assert await draining


async def test_an_idle_engine_is_waited_for_until_it_says_that_it_drains(world: World) -> None:
    engine = await world.join("a", books())
    draining = asyncio.create_task(world.central.drain(25))
    assert await engine.receive() == Drain()
    engine.post(LedgerPush(books(), False))  # on its way before the drain was heard of
    assert isinstance(await world.bind(engine), Unbound)
    assert not draining.done()
    engine.post(LedgerPush(books(), True))
    assert await draining


async def test_a_drain_ends_in_time_whoever_hangs(world: World) -> None:
    await world.join("stuck", books(running=1))
    assert not await world.central.drain(0.05)
