"""Requests that wait for a group: woken by news, bounded in time and number, always counted."""

import asyncio
from contextlib import aclosing

import pytest

from blockyard.cluster import waiting_room
from blockyard.cluster.waiting_room import WaitingRoom
from blockyard.scheduler.request import RefusalCode, RequestRefused

pytestmark = pytest.mark.timeout(30)


class Told:
    """What whoever may start a group was told."""

    def __init__(self) -> None:
        self.counts: list[tuple[str, int]] = []
        self.room = WaitingRoom(lambda model, count: self.counts.append((model, count)))


async def test_news_of_groups_wake_everybody_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_room, "_FIRST_PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(waiting_room, "_LAST_PAUSE_SECONDS", 3600.0)
    told = Told()

    async def wait(turns: int) -> None:
        async with aclosing(told.room.tries("m", 3600.0)) as tries:
            async for _ in tries:
                turns -= 1
                if not turns:
                    return

    waiting = [asyncio.create_task(wait(turns)) for turns in (1, 2)]
    while len(told.counts) < 2:
        await asyncio.sleep(0.001)
    told.room.note_change()
    await waiting[0]
    assert not waiting[1].done()
    told.room.note_change()
    await waiting[1]
    assert told.counts == [("m", 1), ("m", 2), ("m", 1), ("m", 0)]


async def test_without_news_there_are_tries_until_the_time_is_over() -> None:
    told = Told()
    tries = [None async for _ in told.room.tries("m", 0.35)]
    assert 2 <= len(tries) <= 4
    assert told.counts == [("m", 1), ("m", 0)]


async def test_who_leaves_waits_no_more() -> None:
    told = Told()

    async def wait() -> None:
        async with aclosing(told.room.tries("m", 3600.0)) as tries:
            async for _ in tries:
                pass

    waiting = asyncio.create_task(wait())
    while not told.counts:
        await asyncio.sleep(0.001)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert told.counts == [("m", 1), ("m", 0)]


async def test_more_than_may_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_room, "MAX_WAITING", 1)
    told = Told()
    async with aclosing(told.room.tries("m", 3600.0)) as first:
        await anext(first)
        with pytest.raises(RequestRefused) as refused:
            await anext(told.room.tries("m", 3600.0))
        assert refused.value.code is RefusalCode.EXHAUSTED
        async with aclosing(told.room.tries("other", 3600.0)) as other:
            await anext(other)
    assert told.counts[-1] == ("m", 0)
