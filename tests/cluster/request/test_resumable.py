"""Streams that are kept when their reader is cut off."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.resumable import ResumableStreams, check_grace

Item = tuple[str, int]


class Source:
    """Gives items as it is let; each is a name, and by how much it advances."""

    def __init__(self, *items: Item, failure: Exception | None = None, hangs: bool = False) -> None:
        self.items = items
        self.failure = failure
        self.hangs = hangs
        self.given = 0
        self.closed = asyncio.Event()

    async def stream(self) -> AsyncGenerator[Item, None]:
        try:
            for item in self.items:
                self.given += 1
                yield item
            if self.failure is not None:
                raise self.failure
            if self.hangs:
                await asyncio.Event().wait()
        finally:
            self.closed.set()


def streams(**limits: Any) -> ResumableStreams[Item]:
    return ResumableStreams(lambda item: len(item[0]), lambda item: item[1], **limits)


async def take(stream: AsyncGenerator[Item, None], count: int) -> list[str]:
    """The first items of a stream, which is then cut off."""
    names = [(await anext(stream))[0] for _ in range(count)]
    await stream.aclose()
    return names


async def rest(stream: AsyncGenerator[Item, None]) -> list[str]:
    return [item[0] async for item in stream]


TOKENS: tuple[Item, ...] = (("a", 1), ("bc", 2), ("d", 1), ("end of 0", 0), ("e", 1), ("end", 0))


@pytest.mark.parametrize(
    ("read", "seen", "behind"),
    [
        (0, 0, ["a", "bc", "d", "end of 0", "e", "end"]),
        (1, 1, ["bc", "d", "end of 0", "e", "end"]),
        (2, 3, ["d", "end of 0", "e", "end"]),
        (3, 4, ["end of 0", "e", "end"]),
        (6, 5, ["end"]),
    ],
)
async def test_what_was_not_seen_is_read_on(read: int, seen: int, behind: list[str]) -> None:
    kept = streams()
    source = Source(*TOKENS)
    await take(kept.start("corp", "mine", 30, source.stream()), read)
    if read:
        assert await rest(kept.resume("corp", "mine", seen, "seen")) == behind
        # And again: what was lost on its way to the reader comes once more.
        assert await rest(kept.resume("corp", "mine", seen, "seen")) == behind
    await kept.close()
    assert len(kept) == 0


async def test_it_goes_on_while_nobody_reads() -> None:
    kept = streams()
    source = Source(*TOKENS)
    assert await take(kept.start("", "mine", 30, source.stream()), 1) == ["a"]
    async with asyncio.timeout(10):
        await source.closed.wait()
    assert source.given == len(TOKENS)
    await kept.close()


async def test_after_its_grace_it_is_closed_and_forgotten() -> None:
    kept = streams()
    source = Source(*TOKENS, hangs=True)
    await take(kept.start("", "mine", 0.01, source.stream()), 2)
    async with asyncio.timeout(10):
        await source.closed.wait()
    assert len(kept) == 0
    with pytest.raises(ApiError) as caught:
        await anext(kept.resume("", "mine", 3, "seen"))
    assert caught.value.code is ApiCode.NOT_FOUND


async def test_whoever_reads_stops_the_clock() -> None:
    kept = streams()
    source = Source(*TOKENS, hangs=True)
    await take(kept.start("", "mine", 0.05, source.stream()), 2)
    reading = kept.resume("", "mine", 3, "seen")
    await anext(reading)
    [stream] = kept._streams.values()
    assert stream.timer is not None and stream.timer.cancelled()
    await reading.aclose()
    async with asyncio.timeout(10):
        await source.closed.wait()


async def test_only_its_own_tenant_reads_it() -> None:
    kept = streams()
    await take(kept.start("corp", "mine", 30, Source(*TOKENS).stream()), 1)
    for tenant, name in (("rival", "mine"), ("", "mine"), ("corp", "other")):
        with pytest.raises(ApiError) as caught:
            await anext(kept.resume(tenant, name, 1, "seen"))
        assert caught.value.code is ApiCode.NOT_FOUND
    await kept.close()


async def test_a_new_reader_takes_the_old_one_s_place() -> None:
    kept = streams()
    first = kept.start("", "mine", 30, Source(*TOKENS, hangs=True).stream())
    assert [(await anext(first))[0] for _ in range(6)][-1] == "end"
    waiting = asyncio.create_task(anext(first))
    second = kept.resume("", "mine", 4, "seen")
    assert (await anext(second))[0] == "end of 0"
    with pytest.raises(ApiError) as caught:
        await waiting
    assert caught.value.code is ApiCode.ABORTED
    await second.aclose()
    await kept.close()


@pytest.mark.parametrize("seen", [-1, 2, 6])
async def test_places_that_cannot_be_are_refused(seen: int) -> None:
    kept = streams()
    assert await rest(kept.start("", "mine", 30, Source(*TOKENS).stream()))
    with pytest.raises(ApiError) as caught:
        await anext(kept.resume("", "mine", seen, "tokens_seen"))
    assert (caught.value.code, caught.value.field) == (ApiCode.INVALID_ARGUMENT, "tokens_seen")
    await kept.close()


async def test_it_holds_no_more_than_it_may_and_waits_for_its_reader() -> None:
    kept = streams(most_kept_bytes=40)
    source = Source(*((f"{n:10}", 1) for n in range(30)))
    reading = kept.start("", "mine", 30, source.stream())
    assert (await anext(reading))[0].strip() == "0"
    for _ in range(50):
        await asyncio.sleep(0)
    assert source.given <= 7
    names = [name.strip() for name in await take(reading, 19)]
    assert names == [str(n) for n in range(1, 20)]
    with pytest.raises(ApiError, match="is kept from"):
        await anext(kept.resume("", "mine", 3, "seen"))
    names = [name.strip() for name in await rest(kept.resume("", "mine", 19, "seen"))]
    assert names == [str(n) for n in range(19, 30)]
    await kept.close()


async def test_no_more_are_kept_than_may_be() -> None:
    kept = streams(most_streams=2)
    ended, live = Source(*TOKENS), Source(*TOKENS, hangs=True)
    await rest(kept.start("", "ended", 30, ended.stream()))
    await take(kept.start("", "live", 30, live.stream()), 1)
    third = kept.start("", "third", 30, Source(*TOKENS, hangs=True).stream())
    await anext(third)  # in the place of the one that has ended
    fourth = Source(*TOKENS)
    with pytest.raises(ApiError) as caught:
        await anext(kept.start("", "fourth", 30, fourth.stream()))
    assert caught.value.code is ApiCode.RESOURCE_EXHAUSTED
    assert caught.value.retry_after_seconds
    with pytest.raises(ApiError) as caught:
        await anext(kept.start("", "live", 30, fourth.stream()))
    assert caught.value.code is ApiCode.ALREADY_EXISTS
    assert fourth.given == 0
    await third.aclose()
    await kept.close()
    assert live.closed.is_set()


async def test_a_failure_is_told_to_each_reader() -> None:
    kept = streams()
    failure = ApiError(ApiCode.UNAVAILABLE, "", "gone")
    reading = kept.start("", "mine", 30, Source(("a", 1), failure=failure).stream())
    assert (await anext(reading))[0] == "a"
    for stream in (reading, kept.resume("", "mine", 1, "seen")):
        with pytest.raises(ApiError, match="gone"):
            await anext(stream)
    await kept.close()


async def test_what_never_began_leaves_its_name() -> None:
    kept = streams()
    failure = ApiError(ApiCode.INVALID_ARGUMENT, "prompt", "is empty")
    with pytest.raises(ApiError, match="is empty"):
        await anext(kept.start("", "mine", 30, Source(failure=failure).stream()))
    assert len(kept) == 0


async def test_failures_of_our_own_are_told_by_an_incident() -> None:
    kept = streams()
    with pytest.raises(ApiError, match="incident"):
        await anext(kept.start("", "mine", 30, Source(failure=RuntimeError("secret")).stream()))


@pytest.mark.parametrize("seconds", [0.0, -1.0, 301.0, float("nan"), float("inf")])
def test_graces_that_cannot_be_are_refused(seconds: float) -> None:
    with pytest.raises(ApiError, match="must be above 0 and at most 300"):
        check_grace(seconds)
    check_grace(300.0)


async def test_closing_ends_whoever_reads() -> None:
    kept = streams()
    reading = kept.start("", "mine", 30, Source(hangs=True).stream())
    waiting = asyncio.create_task(anext(reading))
    while not len(kept):
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    await kept.close()
    with pytest.raises(ApiError, match="was given up"):
        await waiting
