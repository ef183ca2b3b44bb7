"""Requests that wait at the central scheduler for a group: how that ends without one."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from blockyard.cluster.binding import late_binding
from blockyard.cluster.binding.waiting_messages import Queued
from blockyard.cluster.member import BINDING_SECONDS
from blockyard.cluster.messages import (
    Bound,
    Drain,
    LedgerPush,
    Unbound,
)
from blockyard.scheduler.group_board import LEAST_LEAD
from blockyard.scheduler.request import RefusalCode
from blockyard.workers.description import ModelDescription

pytestmark = pytest.mark.timeout(30)

MODEL = ModelDescription("small", "/nowhere", "Witness", 64, 99, ())
PLACES = 2


async def test_a_deadline_that_cannot_be_met_is_refused_at_once_or_when_that_is_sure(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_binding, "TICK_SECONDS", 0.005)
    group, ingress = await world.group("a"), await world.ingress()
    await world.fill(ingress)
    group.post(LedgerPush(world.books(waiting=LEAST_LEAD, rate=10.0), False))
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
    late = await world.told(ingress)
    assert (late.ticket, late.code) == (first, RefusalCode.INVALID)
    assert world.central.books().waiting.too_late == 3


async def test_what_never_reached_a_group_holds_up_nobody(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_binding, "TICK_SECONDS", 0.005)
    await world.group("a")
    ingress = await world.ingress()
    await world.fill(ingress)  # they never come there, and its books never change
    assert isinstance(await world.ask(ingress), Queued)
    world.now += BINDING_SECONDS + 0.1
    assert await world.told(ingress) == Bound(world.tickets, "a")


async def test_the_last_group_that_goes_sends_everybody_back_to_their_ingresses(
    world: Any,
) -> None:
    group, ingress = await world.group("a"), await world.ingress()
    await world.fill(ingress)
    await world.ask(ingress)
    group.post(LedgerPush(world.books(), True))
    refused = await world.told(ingress)
    assert (refused.ticket, refused.code) == (world.tickets, RefusalCode.UNAVAILABLE)


async def test_one_that_was_served_before_goes_to_a_full_group_at_once(world: Any) -> None:
    await world.group("a", world.books(waiting=9))
    ingress = await world.ingress()
    assert isinstance(await world.ask(ingress), Queued)
    assert await world.ask(ingress, served=True) == Bound(world.tickets, "a")


async def test_a_drain_serves_first_who_was_let_wait(world: Any) -> None:
    group, ingress = await world.group("a"), await world.ingress()
    await world.fill(ingress)
    await world.ask(ingress)
    waiting = world.tickets
    draining = asyncio.create_task(world.central.drain(25))
    assert isinstance(await world.ask(ingress), Unbound)
    group.post(LedgerPush(world.books(waiting=1), False))
    assert await world.told(ingress) == Bound(waiting, "a")
    assert not draining.done()
    group.post(LedgerPush(world.books(running=0), False))
    assert await group.receive() == Drain()
    group.post(LedgerPush(world.books(running=0), True))
    assert await draining


async def test_whose_groups_sleep_waits_at_one_and_scaling_hears_of_it(world: Any) -> None:
    group, ingress = await world.group("a"), await world.ingress()
    await world.fill(ingress)
    await world.ask(ingress)
    assert not world.central.load("small", PLACES).resting
    world.central._members["a"].identity = replace(
        world.central._members["a"].identity, resting=True
    )
    world.central._tell_ingresses()
    assert await world.told(ingress) == Bound(world.tickets, "a")
    assert isinstance(await world.ask(ingress), Bound)
    load = world.central.load("small", PLACES)
    assert load.resting and len(load.groups) == 1 and load.queued_requests == 0
    await group.close()
    await world.until(lambda: not world.central.group_ids)
    assert not world.central.load("small", PLACES).resting
