"""Requests that wait at the central scheduler, with a test in place of engines and ingresses."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from blockyard.cluster.binding import late_binding
from blockyard.cluster.binding.waiting_messages import AskPlaces, Places, Queued, Spent, Withdraw
from blockyard.cluster.central import CentralScheduler
from blockyard.cluster.member import BINDING_SECONDS
from blockyard.cluster.messages import (
    AskGroups,
    Bind,
    Bound,
    Drain,
    GroupIdentity,
    Join,
    LedgerPush,
    ToIngress,
    Unbound,
)
from blockyard.cluster.wire import Codec, Connection, connect
from blockyard.scheduler.cost_model import CostModel
from blockyard.scheduler.group_board import LEAST_LEAD
from blockyard.scheduler.ledger import BlockCounts, GroupLedger, RequestCounts, SlotCounts
from blockyard.scheduler.request import RefusalCode
from blockyard.scheduler.standing import Standing, Waiting
from blockyard.workers.description import ModelDescription

pytestmark = pytest.mark.timeout(30)

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

    async def group(self, name: str, ledger: GroupLedger | None = None, **told: Any) -> Peer:
        told = {"places": PLACES, "max_waiting": 100, **told}
        identity = GroupIdentity(name, MODEL, "cpu", "int64", 4, "127.0.0.1", 1, b"", **told)
        peer = await self.dial()
        peer.post(Join(identity, ledger or books(), False))
        while name not in self.central.group_ids:
            await asyncio.sleep(0.001)
        return peer

    async def ask(self, ingress: Peer, **told: Any) -> Any:
        """The first answer to one more request; its ticket is `world.tickets`."""
        self.tickets += 1
        asked = Bind(self.tickets, "small", 4, request_id=f"r{self.tickets}")
        ingress.post(replace(asked, **told))
        return await told_by(ingress)

    async def fill(self, ingress: Peer, count: int = LEAST_LEAD) -> None:
        """Have a group's own queue as long as it may be."""
        for _ in range(count):
            assert isinstance(await self.ask(ingress), Bound)

    async def until(self, condition: Any) -> None:
        while not condition():
            await asyncio.sleep(0.001)


async def told_by(ingress: Peer) -> Any:
    """The next answer, news of groups left out."""
    while type(answer := await ingress.receive()).__name__ == "Groups":
        pass
    return answer


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.central.start("127.0.0.1")
    yield made
    made.central.check()
    for peer in made.peers:
        await peer.close()
    await made.central.close()


async def test_a_full_group_is_fed_a_little_ahead_and_the_rest_waits_for_the_first_place_anywhere(
    world: World,
) -> None:
    first, ingress = await world.group("a"), await world.ingress()
    await world.fill(ingress)
    assert await world.ask(ingress) == Queued(world.tickets)
    late = world.tickets
    await world.ask(ingress)
    assert world.central.load("small", PLACES).queued_requests == 2
    # A group that comes up has places: nobody is tied to the one that was there first.
    await world.group("b", books(running=1))
    assert await told_by(ingress) == Bound(late, "b")
    assert (await told_by(ingress)).group_id == "b"  # into its queue: its place is taken
    await world.fill(ingress, LEAST_LEAD - 1)
    assert await world.ask(ingress) == Queued(world.tickets)
    first.post(LedgerPush(books(waiting=LEAST_LEAD - 1), False))
    assert await told_by(ingress) == Bound(world.tickets, "a")


async def test_a_place_is_not_given_twice_before_the_books_come(world: World) -> None:
    await world.group("a", books(running=0), max_waiting=1)
    ingress = await world.ingress()
    for _ in range(PLACES + 1):
        assert isinstance(await world.ask(ingress), Bound)
    refused = await world.ask(ingress)
    assert refused.code is RefusalCode.EXHAUSTED and "at most 1" in refused.message


async def test_the_urgent_go_first_then_tenants_in_turn_by_what_they_had(world: World) -> None:
    group, ingress = await world.group("a"), await world.ingress()
    await world.fill(ingress)
    asked = {}
    requests: dict[str, dict[str, Any]] = {
        "a0": {"tenant": "a"}, "a1": {"tenant": "a"}, "b0": {"tenant": "b"},
        "urgent": {"tenant": "a", "priority": 1}, "b1": {"tenant": "b"},
    }  # fmt: skip
    for name, told in requests.items():
        assert isinstance(await world.ask(ingress, **told), Queued)
        asked[world.tickets] = name
    ingress.post(Spent("small", 0, "a", 1))  # counts 2, and each prompt 4
    order = []
    for _ in range(len(asked)):
        group.post(LedgerPush(books(waiting=LEAST_LEAD - 1), False))
        order.append(asked[(await told_by(ingress)).ticket])
    assert order == ["urgent", "b0", "a0", "b1", "a1"]
    counts = world.central.books().waiting
    assert (counts.queued, counts.bound, counts.bound_late) == (0, LEAST_LEAD + 5, 5)


async def test_who_is_more_urgent_than_all_that_wait_is_not_kept_for_the_next_books(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_binding, "TICK_SECONDS", 3600.0)
    group, ingress = await world.group("a"), await world.ingress()
    standing = Standing(Waiting("w", 0, 4), (), 0, 0, 0, CostModel(0, 0.0, 0.0))
    group.post(LedgerPush(books(waiting=LEAST_LEAD), False, standing=standing))
    await world.until(lambda: world.central._members["a"].candidate.standing is not None)
    assert isinstance(await world.ask(ingress), Queued)
    assert isinstance(await world.ask(ingress, priority=1), Queued)
    assert await told_by(ingress) == Bound(world.tickets, "a")


async def test_one_that_was_here_before_comes_before_who_has_just_come(world: World) -> None:
    group, ingress = await world.group("a"), await world.ingress()
    await world.fill(ingress)
    await world.ask(ingress)
    await world.ask(ingress, waited=5.0)
    ingress.post(AskPlaces(99, (world.tickets, world.tickets - 1, 7777)))
    assert await told_by(ingress) == Places(99, {world.tickets: 0, world.tickets - 1: 1})
    assert world.central.books().waiting.oldest_seconds == 5.0
    group.post(LedgerPush(books(waiting=LEAST_LEAD - 1), False))
    assert await told_by(ingress) == Bound(world.tickets, "a")


async def test_who_leaves_and_whose_ingress_goes_waits_no_more(world: World) -> None:
    await world.group("a")
    ingress, other = await world.ingress(), await world.ingress()
    await world.fill(ingress)
    for _ in range(3):
        await world.ask(ingress)
    await world.ask(other)
    ingress.post(Withdraw(world.tickets - 2))
    ingress.post(Withdraw(world.tickets - 2))
    await world.until(lambda: len(world.central.binding) == 3)
    await ingress.close()
    await world.until(lambda: len(world.central.binding) == 1)
    assert world.central.books().waiting.queued == 1


async def test_a_full_queue_sheds_who_has_most_in_it_and_the_least_urgent(world: World) -> None:
    await world.group("a", max_waiting=2 * LEAST_LEAD)
    ingress = await world.ingress()
    await world.fill(ingress)
    for _ in range(LEAST_LEAD):
        assert isinstance(await world.ask(ingress, tenant="many"), Queued)
    youngest = world.tickets
    refused = await world.ask(ingress, tenant="many")
    assert (refused.ticket, refused.code) == (world.tickets, RefusalCode.EXHAUSTED)
    assert await world.ask(ingress, tenant="few") == Unbound(
        youngest, RefusalCode.EXHAUSTED, refused.message
    )
    assert await told_by(ingress) == Queued(world.tickets)
    few = world.tickets
    # More urgent than all: another of the largest goes.
    assert (await world.ask(ingress, priority=1)).ticket == youngest - 1
    assert await told_by(ingress) == Queued(world.tickets)
    assert world.central.books().waiting.shed == 3
    ingress.post(AskPlaces(9, (few,)))
    assert (await told_by(ingress)).places == {few: 2}


async def test_a_deadline_that_cannot_be_met_is_refused_at_once_or_when_that_is_sure(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_binding, "TICK_SECONDS", 0.005)
    group, ingress = await world.group("a"), await world.ingress()
    await world.fill(ingress)
    group.post(LedgerPush(books(waiting=LEAST_LEAD, rate=10.0), False))
    await world.until(lambda: world.central.binding._lines["small"].rates.prefill_tokens_per_second)
    hopeless = await world.ask(ingress, prompt_tokens=400, seconds=20.0)
    assert (hopeless.code, hopeless.field) == (RefusalCode.INVALID, "deadline_seconds")
    assert await world.ask(ingress, prompt_tokens=100, seconds=20.0) == Queued(world.tickets)
    first = world.tickets
    behind = await world.ask(ingress, prompt_tokens=100, seconds=12.0)
    assert behind.code is RefusalCode.EXHAUSTED and "ahead of it" in behind.message
    world.now += 12.0  # 8 s are left; its prompt takes 10, of which 7 count
    for _ in range(5):
        await asyncio.sleep(0.005)
    assert len(world.central.binding) == 1
    world.now += 2.0
    late = await told_by(ingress)
    assert (late.ticket, late.code) == (first, RefusalCode.INVALID)
    assert world.central.books().waiting.too_late == 3


async def test_what_never_reached_a_group_holds_up_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_binding, "TICK_SECONDS", 0.005)
    await world.group("a")
    ingress = await world.ingress()
    await world.fill(ingress)  # they never come there, and its books never change
    assert isinstance(await world.ask(ingress), Queued)
    world.now += BINDING_SECONDS + 0.1
    assert await told_by(ingress) == Bound(world.tickets, "a")


async def test_the_last_group_that_goes_sends_everybody_back_to_their_ingresses(
    world: World,
) -> None:
    group, ingress = await world.group("a"), await world.ingress()
    await world.fill(ingress)
    await world.ask(ingress)
    group.post(LedgerPush(books(), True))
    refused = await told_by(ingress)
    assert (refused.ticket, refused.code) == (world.tickets, RefusalCode.UNAVAILABLE)


async def test_one_that_was_served_before_goes_to_a_full_group_at_once(world: World) -> None:
    await world.group("a", books(waiting=9))
    ingress = await world.ingress()
    assert isinstance(await world.ask(ingress), Queued)
    assert await world.ask(ingress, served=True) == Bound(world.tickets, "a")


async def test_a_drain_serves_first_who_was_let_wait(world: World) -> None:
    group, ingress = await world.group("a"), await world.ingress()
    await world.fill(ingress)
    await world.ask(ingress)
    waiting = world.tickets
    draining = asyncio.create_task(world.central.drain(25))
    assert isinstance(await world.ask(ingress), Unbound)
    group.post(LedgerPush(books(waiting=1), False))
    assert await told_by(ingress) == Bound(waiting, "a")
    assert not draining.done()
    group.post(LedgerPush(books(running=0), False))
    assert await group.receive() == Drain()
    group.post(LedgerPush(books(running=0), True))
    assert await draining


async def test_whose_groups_sleep_waits_at_one_and_scaling_hears_of_it(world: World) -> None:
    group, ingress = await world.group("a"), await world.ingress()
    await world.fill(ingress)
    await world.ask(ingress)
    assert not world.central.load("small", PLACES).resting
    world.central._members["a"].identity = replace(
        world.central._members["a"].identity, resting=True
    )
    world.central._tell_ingresses()
    assert await told_by(ingress) == Bound(world.tickets, "a")
    assert isinstance(await world.ask(ingress), Bound)
    load = world.central.load("small", PLACES)
    assert load.resting and len(load.groups) == 1 and load.queued_requests == 0
    await group.close()
    await world.until(lambda: not world.central.group_ids)
    assert not world.central.load("small", PLACES).resting
