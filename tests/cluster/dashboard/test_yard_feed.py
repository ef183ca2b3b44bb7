"""What the page is told, and how often somebody looks for it."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import pytest

from blockyard.cluster.books.group_books import GroupBooks
from blockyard.cluster.dashboard.yard_feed import MAX_CELLS, YardFeed
from blockyard.cluster.dispatch import GroupReport, GroupYard
from blockyard.cluster.request.caller import Caller
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.request import RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.yard_drawing import draw_yard

CONFIG = SchedulerConfig(
    max_context_tokens=100, block_size=4, max_running=4, max_step_tokens=16, max_waiting=9
)


class Source:
    """One group that counts how often it is looked at, and lets time pass while it is."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(CONFIG, 10)
        self.asked: list[tuple[str, int]] = []
        self.now = 100.0
        self.takes = 0.0

    async def yards(self, group_id: str, max_cells: int) -> tuple[GroupYard, ...]:
        self.asked.append((group_id, max_cells))
        self.now += self.takes
        books = GroupBooks(self.scheduler.ledger())
        report = GroupReport("group-1", "m", "cpu", "float32", books)
        return (GroupYard(report, draw_yard(self.scheduler, max_cells)),)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def make_feed(source: Source) -> Callable[[float], YardFeed]:
    return lambda interval: YardFeed(source, interval, lambda: source.now)


async def test_watchers_of_one_group_share_a_look(
    source: Source, make_feed: Callable[[float], YardFeed]
) -> None:
    feed = make_feed(60.0)
    watches = [feed.watch("group-1") for _ in range(3)]
    news = [await anext(watch) for watch in watches]
    assert len(set(news)) == 1
    assert source.asked == [("group-1", MAX_CELLS)]
    assert await anext(feed.watch("other"))
    assert len(source.asked) == 2
    for watch in watches:
        await watch.aclose()


async def test_of_what_nobody_watches_any_more_nothing_is_kept(
    source: Source, make_feed: Callable[[float], YardFeed]
) -> None:
    feed = make_feed(60.0)
    watches = [feed.watch(f"no such group {number}") for number in range(9)]
    for watch in watches:
        await anext(watch)
    for watch in watches[1:]:
        await watch.aclose()
    assert len(feed) == 9  # whoever comes back at once shares them
    source.now += 60
    async with aclosing(feed.watch("group-1")) as late:
        await anext(late)
        assert len(feed) == 2
    await watches[0].aclose()


async def test_watchers_share_a_look_and_not_what_each_may_know(
    source: Source, make_feed: Callable[[float], YardFeed]
) -> None:
    spec = RequestSpec("hers", (1, 2), SamplingParams(max_tokens=2), tenant="blue")
    source.scheduler.submit(spec, 0.0)
    feed = make_feed(60.0)
    told = [
        await anext(feed.watch("", viewer))
        for viewer in (Caller("red"), Caller("blue"), Caller("red", sees_all=True), Caller("red"))
    ]
    assert ["hers" in each.decode() for each in told] == [False, True, True, False]
    assert len(source.asked) == 1


async def test_a_look_is_taken_anew_after_the_interval_and_not_before(
    source: Source, make_feed: Callable[[float], YardFeed]
) -> None:
    feed = make_feed(60.0)
    for elapsed, looks in ((0.0, 1), (59.0, 1), (1.0, 2)):
        source.now += elapsed
        await anext(feed.watch(""))
        assert len(source.asked) == looks


async def test_what_takes_long_is_looked_at_less_often(
    source: Source, make_feed: Callable[[float], YardFeed]
) -> None:
    source.takes = 10.0
    feed = make_feed(1.0)
    for elapsed, looks in ((0.0, 1), (199.0, 1), (1.0, 2)):
        source.now += elapsed
        await anext(feed.watch(""))
        assert len(source.asked) == looks


async def test_ending_ends_every_watch(make_feed: Callable[[float], YardFeed]) -> None:
    feed = make_feed(3600.0)

    async def follow() -> int:
        return len([news async for news in feed.watch("")])

    watching = [asyncio.create_task(follow()) for _ in range(2)]
    while any(not task.done() and feed._looks.get("") is None for task in watching):
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    feed.end()
    async with asyncio.timeout(60):
        assert await asyncio.gather(*watching) in ([1, 1], [0, 1], [1, 0], [0, 0])


async def test_nobody_watching_means_nobody_looking(source: Source) -> None:
    YardFeed(source)
    await asyncio.sleep(0)
    assert source.asked == []
