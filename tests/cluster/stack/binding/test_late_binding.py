"""Requests that wait at the central scheduler for a group: who is bound, and where."""

from typing import Any

import pytest

from blockyard.cluster.binding import late_binding
from blockyard.cluster.binding.waiting_messages import AskPlaces, Places, Queued, Spent, Withdraw
from blockyard.cluster.messages import (
    Bound,
    LedgerPush,
    Unbound,
)
from blockyard.scheduler.cost_model import CostModel
from blockyard.scheduler.group_board import LEAST_LEAD
from blockyard.scheduler.request import RefusalCode
from blockyard.scheduler.standing import Standing, Waiting
from blockyard.scheduler.under_way import UnderWay
from blockyard.workers.description import ModelDescription

pytestmark = pytest.mark.timeout(30)

MODEL = ModelDescription("small", "/nowhere", "Witness", 64, 99, ())
PLACES = 2


async def test_a_full_group_is_fed_a_little_ahead_and_the_rest_waits_for_the_first_place_anywhere(
    world: Any,
) -> None:
    first, ingress = await world.group("a"), await world.ingress()
    await world.fill(ingress)
    assert await world.ask(ingress) == Queued(world.tickets)
    late = world.tickets
    await world.ask(ingress)
    assert world.central.load("small", PLACES).queued_requests == 2
    # A group that comes up has places: nobody is tied to the one that was there first.
    await world.group("b", world.books(running=1))
    assert await world.told(ingress) == Bound(late, "b")
    assert (await world.told(ingress)).group_id == "b"  # into its queue: its place is taken
    await world.fill(ingress, LEAST_LEAD - 1)
    assert await world.ask(ingress) == Queued(world.tickets)
    first.post(LedgerPush(world.books(waiting=LEAST_LEAD - 1), False))
    assert await world.told(ingress) == Bound(world.tickets, "a")


async def test_a_place_is_not_given_twice_before_the_books_come(world: Any) -> None:
    await world.group("a", world.books(running=0), max_waiting=1)
    ingress = await world.ingress()
    for _ in range(PLACES + 1):
        assert isinstance(await world.ask(ingress), Bound)
    refused = await world.ask(ingress)
    assert refused.code is RefusalCode.EXHAUSTED and "at most 1" in refused.message


async def test_the_urgent_go_first_then_tenants_in_turn_by_what_they_had(world: Any) -> None:
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
        group.post(LedgerPush(world.books(waiting=LEAST_LEAD - 1), False))
        order.append(asked[(await world.told(ingress)).ticket])
    assert order == ["urgent", "b0", "a0", "b1", "a1"]
    counts = world.central.books().waiting
    assert (counts.queued, counts.bound, counts.bound_late) == (0, LEAST_LEAD + 5, 5)


async def test_what_was_under_way_before_counts_once_for_each_group_that_had_it(
    world: Any,
) -> None:
    had = (UnderWay(0, "a", 3), UnderWay(0, "b", 1), UnderWay(1, "b", 1000))
    await world.group("there", under_way=had)
    await world.group("late", under_way=(UnderWay(0, "a", 6),))
    # It comes again, and tells the same: who bound it is still here.
    group, ingress = await world.group("there", under_way=had), await world.ingress()
    await world.fill(ingress, 2 * LEAST_LEAD)
    asked = {}
    for number in range(8):
        tenant = "ab"[number // 4]
        assert isinstance(await world.ask(ingress, tenant=tenant, waited=1.0), Queued)
        asked[world.tickets] = tenant
    order = ""
    for _ in range(8):
        group.post(LedgerPush(world.books(waiting=LEAST_LEAD - 1), False))
        order += asked[(await world.told(ingress)).ticket]
    assert order == "bb" + "abab" + "aa"  # from 9 and 1 on, by 4 each


async def test_who_is_more_urgent_than_all_that_wait_is_not_kept_for_the_next_books(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_binding, "TICK_SECONDS", 3600.0)
    group, ingress = await world.group("a"), await world.ingress()
    standing = Standing(Waiting("w", 0, 4), (), 0, 0, 0, CostModel(0, 0.0, 0.0))
    group.post(LedgerPush(world.books(waiting=LEAST_LEAD), False, standing=standing))
    await world.until(lambda: world.central._members["a"].candidate.standing is not None)
    assert isinstance(await world.ask(ingress), Queued)
    assert isinstance(await world.ask(ingress, priority=1), Queued)
    assert await world.told(ingress) == Bound(world.tickets, "a")


async def test_one_that_was_here_before_comes_before_who_has_just_come(world: Any) -> None:
    group, ingress = await world.group("a"), await world.ingress()
    await world.fill(ingress)
    await world.ask(ingress)
    await world.ask(ingress, waited=5.0)
    ingress.post(AskPlaces(99, (world.tickets, world.tickets - 1, 7777)))
    assert await world.told(ingress) == Places(99, {world.tickets: 0, world.tickets - 1: 1})
    assert world.central.books().waiting.oldest_seconds == 5.0
    group.post(LedgerPush(world.books(waiting=LEAST_LEAD - 1), False))
    assert await world.told(ingress) == Bound(world.tickets, "a")


async def test_who_leaves_and_whose_ingress_goes_waits_no_more(world: Any) -> None:
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


async def test_a_full_queue_sheds_who_has_most_in_it_and_the_least_urgent(world: Any) -> None:
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
    assert await world.told(ingress) == Queued(world.tickets)
    few = world.tickets
    # More urgent than all: another of the largest goes.
    assert (await world.ask(ingress, priority=1)).ticket == youngest - 1
    assert await world.told(ingress) == Queued(world.tickets)
    assert world.central.books().waiting.shed == 3
    ingress.post(AskPlaces(9, (few,)))
    assert (await world.told(ingress)).places == {few: 2}
