"""What of a stream is kept, and which streams are where there are more than may be."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockyard.cluster.request import kept_stream
from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.kept_stream import Hold, KeptStream, choose_leaving
from blockyard.cluster.request.resumable import ResumableStreams

pytestmark = pytest.mark.timeout(120)

Item = tuple[str, int]


class Source:
    """Gives its items, then waits until it is let end."""

    def __init__(self, *items: Item) -> None:
        self.items = items
        self.may_end = asyncio.Event()
        self.closed = asyncio.Event()

    async def stream(self) -> AsyncGenerator[Item, None]:
        try:
            for item in self.items:
                yield item
            await self.may_end.wait()
        finally:
            self.closed.set()


def streams(**limits: Any) -> ResumableStreams[Item]:
    return ResumableStreams(lambda item: len(item[0]), lambda item: item[1], **limits)


def first_behind(items: list[Item], seen: int) -> int | None:
    """Number of the first item that somebody who has seen so much may lack."""
    place = 0
    for number, (_, steps) in enumerate(items):
        if place == seen:
            return number
        place += steps
    return len(items) if place == seen else None


@given(
    steps=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    most_bytes=st.integers(1, 40),
    num_read=st.integers(1, 30),
)
def test_whoever_comes_back_lacks_nothing_or_is_told(
    steps: list[int], most_bytes: int, num_read: int
) -> None:
    items = [(f"{number:02}" * (1 + number % 4), by) for number, by in enumerate(steps)]

    async def run() -> None:
        kept = streams(most_kept_bytes=most_bytes)
        source = Source(*items)
        source.may_end.set()
        reading = kept.start("", "mine", 30, source.stream())
        told = [item async for item in _first(reading, num_read)]
        assert told == items[:num_read]
        await reading.aclose()
        # First where its reader was cut off: from there it can be read on in any case.
        cut = sum(by for _, by in told)
        for attempt, seen in enumerate((cut, *range(sum(steps) + 1))):
            expected = first_behind(items, seen)
            try:
                rest = [item async for item in kept.resume("", "mine", seen, "seen")]
            except ApiError as refused:
                assert refused.code is ApiCode.INVALID_ARGUMENT and attempt > 0
                continue
            assert expected is not None and rest == items[expected:]
        await kept.close()

    asyncio.run(run())


async def _first(reading: AsyncGenerator[Item, None], count: int) -> AsyncGenerator[Item, None]:
    while count > 0:
        count -= 1
        try:
            yield await anext(reading)
        except StopAsyncIteration:
            return


async def test_the_last_word_of_a_choice_is_not_lost_when_room_is_made() -> None:
    kept = streams(most_kept_bytes=24)
    items = [("one" * 3, 1), ("end of 0", 0), ("two" * 3, 1), ("three" * 3, 1), ("end of 1", 0)]
    source = Source(*items)
    source.may_end.set()
    reading = kept.start("", "mine", 30, source.stream())
    assert [await anext(reading) for _ in range(2)] == items[:2]  # it may never have arrived
    for _ in range(20):
        await asyncio.sleep(0)
    await reading.aclose()
    assert [item async for item in kept.resume("", "mine", 1, "seen")] == items[1:]
    await kept.close()


def kept(now: float = 0.0, reader: bool = False, done: bool = False, unread: bool = False) -> Any:
    stream: KeptStream[Item] = KeptStream(Source().stream(), 30, 100, now)
    stream.reader = object() if reader else None
    stream.done = done
    if unread:
        stream.items.append((1, ("x", 1), 1))
    return stream


async def test_how_dear_a_stream_is() -> None:
    assert kept(done=True).hold(99) is Hold.ENDED
    assert kept().hold(99) is Hold.UNREAD
    assert kept(reader=True).hold(99) is Hold.READ
    assert kept(reader=True, unread=True).hold(29) is Hold.READ
    assert kept(reader=True, unread=True).hold(31) is Hold.STALLED
    assert kept(now=70, reader=True, unread=True).hold(99) is Hold.READ


async def test_who_has_most_gives_up_what_is_missed_least() -> None:
    table = {
        ("rich", "read"): kept(reader=True),
        ("rich", "cut off"): kept(),
        ("rich", "stalled"): kept(reader=True, unread=True),
        ("rich", "ended"): kept(done=True),
        ("poor", "ended"): kept(done=True),
    }
    gone = []
    while (leaving := choose_leaving(table, "new", 99.0)) is not None:
        gone.append(leaving)
        del table[leaving]
    # The last two: one each is even.
    assert gone == [
        ("rich", "ended"),
        ("poor", "ended"),
        ("rich", "stalled"),
        ("rich", "cut off"),
    ]
    assert choose_leaving(table, "rich", 99.0) is None


async def test_a_tenant_that_has_fewer_loses_nothing_to_one_that_has_more() -> None:
    table = {("rich", str(n)): kept(reader=True) for n in range(3)}
    table["poor", "ended"] = kept(done=True)
    assert choose_leaving(table, "rich", 99.0) is None
    table["rich", "ended"] = kept(done=True)
    assert choose_leaving(table, "rich", 99.0) == ("rich", "ended")


async def test_a_tenant_with_all_places_gives_one_up_and_its_reader_does_not_notice() -> None:
    pool = streams(most_streams=3)
    hogs = [Source(("a", 1), ("b", 1)) for _ in range(3)]
    readings = [pool.start("hog", str(n), 30, hog.stream()) for n, hog in enumerate(hogs)]
    for reading in readings:
        assert await anext(reading) == ("a", 1)
    other = pool.start("other", "mine", 30, Source(("c", 1)).stream())
    assert await anext(other) == ("c", 1)
    assert len(pool) == 3
    with pytest.raises(ApiError) as caught:
        await anext(pool.resume("hog", "0", 1, "seen"))
    assert caught.value.code is ApiCode.NOT_FOUND
    with pytest.raises(ApiError) as caught:  # it has its share
        await anext(pool.start("hog", "again", 30, Source(("d", 1)).stream()))
    assert caught.value.code is ApiCode.RESOURCE_EXHAUSTED
    assert await anext(readings[0]) == ("b", 1)
    assert not hogs[0].closed.is_set()
    await readings[0].aclose()  # it is kept no longer, so it ends with its reader
    async with asyncio.timeout(10):
        await hogs[0].closed.wait()
    await readings[1].aclose()
    assert [await anext(pool.resume("hog", "1", 1, "seen"))] == [("b", 1)]
    await pool.close()
    for source in hogs:
        assert source.closed.is_set()


async def test_a_reader_that_takes_nothing_loses_its_place_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = streams(most_streams=1)
    stuck = Source(("a", 1), ("b", 1), ("c", 1))
    reading = pool.start("", "stuck", 30, stuck.stream())
    assert await anext(reading) == ("a", 1)
    with pytest.raises(ApiError) as caught:
        await anext(pool.start("", "mine", 30, Source(("d", 1)).stream()))
    assert caught.value.code is ApiCode.RESOURCE_EXHAUSTED
    monkeypatch.setattr(kept_stream, "STALLED_SECONDS", 0.0)
    assert await anext(pool.start("", "mine", 30, Source(("d", 1)).stream())) == ("d", 1)
    async with asyncio.timeout(10):
        await stuck.closed.wait()
    # What was there for it is still given, and then it is told.
    assert [await anext(reading) for _ in range(2)] == [("b", 1), ("c", 1)]
    with pytest.raises(ApiError, match="given up"):
        await anext(reading)
    await pool.close()


async def test_a_reader_that_was_replaced_ends_nothing_when_it_leaves() -> None:
    pool = streams(most_streams=2)
    source = Source(("a", 1), ("b", 1), ("c", 1))
    hung = pool.start("hog", "0", 30, source.stream())
    assert await anext(hung) == ("a", 1)
    again = pool.resume("hog", "0", 1, "seen")
    assert await anext(again) == ("b", 1)
    assert await anext(pool.start("hog", "1", 30, Source(("d", 1)).stream())) == ("d", 1)
    assert await anext(pool.start("other", "mine", 30, Source(("e", 1)).stream())) == ("e", 1)
    with pytest.raises(ApiError):  # it is kept no longer, and goes on for who reads it
        await anext(pool.resume("hog", "0", 1, "seen"))
    await hung.aclose()  # at last the network tells that this one has gone
    assert await anext(again) == ("c", 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not source.closed.is_set()
    await again.aclose()
    async with asyncio.timeout(10):
        await source.closed.wait()
    await pool.close()


async def test_what_advances_nothing_holds_nobody_up() -> None:
    pool = streams(most_kept_bytes=3)
    items = [("x" * 5, 0) for _ in range(20)]
    source = Source(*items)
    source.may_end.set()
    async with asyncio.timeout(10):
        assert [item async for item in pool.start("", "mine", 30, source.stream())] == items
    await pool.close()
