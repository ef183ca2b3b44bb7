"""Ranks that are stuck, slow, dead or new, and which of them are ended."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from blockyard.cluster import rank_watch
from blockyard.cluster.rank import RankDied
from blockyard.cluster.rank_watch import RankWatch

pytestmark = pytest.mark.timeout(30)


class Handle:
    """A rank that answers, is silent, or has died."""

    def __init__(self) -> None:
        self.silent = False
        self.dead = False
        self.asked = 0

    async def call(self, method: str, *arguments: object) -> Any:
        assert (method, arguments) == ("process_id", ())
        self.asked += 1
        if self.dead:
            raise RankDied("gone")
        if self.silent:
            await asyncio.Event().wait()
        return 7


class Group:
    """Two ranks that are watched."""

    def __init__(self) -> None:
        self.handles = [Handle(), Handle()]
        self.stalled = 0.0
        self.ended: list[int] = []
        self.watch = RankWatch(lambda: self.stalled, lambda: self.handles, self.end)

    def end(self, rank: int) -> None:
        self.ended.append(rank)
        self.handles = []

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
async def group(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Group]:
    monkeypatch.setattr(rank_watch, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(rank_watch, "ANSWER_SECONDS", 0.05)
    made = Group()
    running = asyncio.create_task(made.watch.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_only_the_silent_one_is_ended_when_a_step_takes_long(group: Group) -> None:
    group.handles[1].silent = True
    group.stalled = 3.0
    await group.until(lambda: bool(group.ended))
    assert group.ended == [1]


async def test_a_long_step_of_ranks_that_answer_goes_on(group: Group) -> None:
    group.stalled = 3600.0
    await group.until(lambda: group.handles[0].asked > 5)
    assert group.ended == []


async def test_nobody_is_asked_while_steps_end(group: Group) -> None:
    group.handles[0].silent = True
    group.stalled = 1.0
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert [handle.asked for handle in group.handles] == [0, 0]


async def test_a_dead_one_is_left_to_its_connection(group: Group) -> None:
    group.handles[0].dead = True
    group.stalled = 3.0
    await group.until(lambda: group.handles[0].asked > 2)
    assert group.ended == []


@pytest.mark.parametrize("change", ["replaced", "step ended"])
async def test_news_that_come_while_a_rank_is_asked_count(group: Group, change: str) -> None:
    first = group.handles[0]
    first.silent = True
    group.stalled = 3.0
    await group.until(lambda: first.asked == 1)
    if change == "replaced":
        group.handles = [Handle(), group.handles[1]]
        await group.until(lambda: group.handles[0].asked > 2)
    else:
        group.stalled = 0.0
        for _ in range(100):
            await asyncio.sleep(0.001)
    assert group.ended == []
