"""Who asks for another group is answered, also when there is no engine to run it any more."""

import asyncio

import pytest

from blockyard.cluster.group import Group, GroupLost
from blockyard.cluster.succession import Succession

pytestmark = pytest.mark.timeout(30)


async def never() -> Group:
    raise AssertionError("nobody is to make a group")


async def test_who_waits_when_the_engine_is_lost_is_told() -> None:
    succession = Succession(None, lambda: None)
    waiting = asyncio.create_task(succession.ask(never))
    await asyncio.sleep(0)
    assert succession.wanted
    succession.end("rank 0 has died")
    with pytest.raises(GroupLost, match="rank 0 has died"):
        await waiting
    assert not succession.wanted


async def test_who_asks_a_lost_engine_is_told_at_once() -> None:
    succession = Succession(None, lambda: None)
    succession.end("rank 0 has died")
    with pytest.raises(GroupLost, match="rank 0 has died"):
        await succession.ask(never)
