"""How an ingress chooses a group, with the central scheduler and without."""

import asyncio
from typing import Any

import pytest

from blockyard.cluster import binder
from blockyard.cluster.messages import Unbound
from blockyard.scheduler.request import RefusalCode, RequestRefused

pytestmark = pytest.mark.timeout(30)


async def test_requests_go_where_they_are_bound(world: Any) -> None:
    first, second = world.groups
    await world.submit("x")
    world.bind_to = "b"
    await world.submit("y")
    assert (first.taken, second.taken) == (["x"], ["y"])


async def test_a_silent_central_scheduler_is_hung_up_on_and_done_without(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.bind_to = None
    monkeypatch.setattr(binder, "BIND_SECONDS", 0.05)
    waiting = [asyncio.create_task(world.submit(f"r{number}")) for number in range(4)]
    await asyncio.gather(*waiting)
    assert sorted(world.groups[0].taken + world.groups[1].taken) == ["r0", "r1", "r2", "r3"]
    while world.calls < 2:  # it hung up, and tries anew
        await asyncio.sleep(0.001)


async def test_who_waits_for_a_central_scheduler_that_goes_is_bound_at_once(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binder, "BIND_SECONDS", 3600.0)
    world.bind_to = None
    waiting = asyncio.create_task(world.submit("x"))
    await asyncio.sleep(0.01)
    await world.lose_central()
    await waiting


@pytest.mark.parametrize("code", [RefusalCode.UNAVAILABLE, RefusalCode.EXHAUSTED])
async def test_a_new_central_scheduler_without_groups_is_second_guessed(
    world: Any, code: RefusalCode
) -> None:
    world.bind_to = Unbound(0, code, "no")
    if code is RefusalCode.UNAVAILABLE:
        await world.submit("x")
        assert world.groups[0].taken + world.groups[1].taken == ["x"]
    else:
        with pytest.raises(RequestRefused) as refused:
            await world.submit("x")
        assert (refused.value.code, refused.value.message) == (code, "no")


async def test_alone_it_spreads_requests_by_its_own(world: Any) -> None:
    await world.lose_central()
    for number in range(6):
        await world.submit(f"r{number}")
    assert [len(group.taken) for group in world.groups] == [3, 3]


async def test_no_traffic_is_welcome_while_everything_drains(world: Any) -> None:
    assert await world.dispatcher.ready()
    await world.tell("a", "b", draining=True)
    while await world.dispatcher.ready():
        await asyncio.sleep(0.001)
    await world.lose_central()
    with pytest.raises(RequestRefused) as refused:
        await world.submit("x")
    assert refused.value.code is RefusalCode.UNAVAILABLE
