"""Streams that go on for a while when their reader is cut off, and are read on from where it stood.

What a stream has given is kept, up to a limit, until its grace is over: that long after its last
reader has left, whether it has ended or not. Then it is closed, which ends its request. A stream
that holds as much as it may goes no faster than it is read. Knows no transport and no tokens.
Units: seconds, bytes; places are counted by the caller's own measure, from 0.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Generic, TypeVar

from blockyard.cluster.request.api_error import RETRY_AFTER_SECONDS, ApiCode, ApiError
from blockyard.cluster.request.generation import unexpected_error
from blockyard.cluster.request.limits import invalid

__all__ = ["ResumableStreams", "check_grace"]

MOST_RESUME_SECONDS = 300.0
MOST_STREAMS = 256
MOST_KEPT_BYTES = 1 << 20
"""Of one stream: some ten thousand tokens."""

T = TypeVar("T")


def check_grace(seconds: float) -> None:
    """Refuse a grace that would keep nothing, or for too long. Raises `ApiError`."""
    if not 0 < seconds <= MOST_RESUME_SECONDS:
        raise invalid(
            "resume_seconds",
            f"is {seconds}; it must be above 0 and at most {MOST_RESUME_SECONDS:g}",
        )


class _Kept(Generic[T]):
    """One stream, what it gave last, and who reads it."""

    def __init__(self, source: AsyncGenerator[T, None], grace_seconds: float) -> None:
        self.source = source
        self.grace_seconds = grace_seconds
        # Items with the place behind each; `first` is the number of the first one kept.
        self.items: deque[tuple[int, T, int]] = deque()
        self.first = 0
        self.begin_place = self.end_place = 0
        self.num_bytes = 0
        self.num_read = 0
        self.done = False
        self.failure: ApiError | None = None
        self.reader: object | None = None
        self.changed = asyncio.Event()
        self.pump: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def note(self) -> None:
        """Wake whoever waits for a change."""
        self.changed.set()
        self.changed = asyncio.Event()


class ResumableStreams(Generic[T]):
    """The streams of one front.

    Args:
        size_of: bytes of an item.
        steps_of: by how much an item advances the reader's place; 0 for what belongs to the last.
    """

    def __init__(
        self,
        size_of: Callable[[T], int],
        steps_of: Callable[[T], int],
        most_streams: int = MOST_STREAMS,
        most_kept_bytes: int = MOST_KEPT_BYTES,
    ) -> None:
        self._size_of = size_of
        self._steps_of = steps_of
        self._most_streams = most_streams
        self._most_kept_bytes = most_kept_bytes
        self._streams: dict[tuple[str, str], _Kept[T]] = {}

    def __len__(self) -> int:
        """Streams that are kept, ended ones included."""
        return len(self._streams)

    async def start(
        self, tenant: str, name: str, grace_seconds: float, source: AsyncGenerator[T, None]
    ) -> AsyncGenerator[T, None]:
        """Read a new stream from its beginning; closing this leaves it its grace.

        Raises:
            ApiError: RESOURCE_EXHAUSTED: too many are kept; ALREADY_EXISTS: one of that name is; or
                whatever the stream itself raises.
        """
        key = (tenant, name)
        try:
            self._make_room(key)
        except ApiError:
            await source.aclose()
            raise
        kept = self._streams[key] = _Kept(source, grace_seconds)
        kept.pump = asyncio.create_task(self._pump(kept), name="resumable-stream")
        async with aclosing(self._read(key, kept, 0)) as items:
            async for item in items:
                yield item

    async def resume(
        self, tenant: str, name: str, seen: int, field: str
    ) -> AsyncGenerator[T, None]:
        """Read a stream on from a place; whoever read it before is told that it is read elsewhere.

        Raises:
            ApiError: NOT_FOUND: no such stream is kept (any more); INVALID_ARGUMENT naming `field`,
                which told the place: it has not come so far, or what follows is not kept any more.
        """
        key = (tenant, name)
        kept = self._streams.get(key)
        if kept is None:
            raise ApiError(
                ApiCode.NOT_FOUND,
                "request_id",
                f"no stream {name!r} of yours is kept here (any more); send the request again",
            )
        number = self._number_at(kept, seen, field)
        async with aclosing(self._read(key, kept, number)) as items:
            async for item in items:
                yield item

    async def close(self) -> None:
        """Close every stream."""
        pumps = [kept.pump for kept in self._streams.values() if kept.pump is not None]
        for key in list(self._streams):
            self._drop(key)
        await asyncio.gather(*pumps, return_exceptions=True)

    def _make_room(self, key: tuple[str, str]) -> None:
        earlier = self._streams.get(key)
        if earlier is not None and not earlier.done:
            raise ApiError(
                ApiCode.ALREADY_EXISTS,
                "request_id",
                f"a stream {key[1]!r} of yours is kept here; resume it, or abort it first",
            )
        if earlier is not None:
            self._drop(key)
        if len(self._streams) < self._most_streams:
            return
        for other, kept in self._streams.items():
            if kept.done and kept.reader is None:
                self._drop(other)
                return
        raise ApiError(
            ApiCode.RESOURCE_EXHAUSTED,
            "",
            f"{self._most_streams} streams are kept to be resumed, as many as may be; try again, "
            "or ask for one that is not",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )

    def _number_at(self, kept: _Kept[T], seen: int, field: str) -> int:
        """The first item behind a place, those that advance nothing there included."""
        if kept.begin_place <= seen <= kept.end_place:
            place = kept.begin_place
            for offset, (behind, _, _) in enumerate(kept.items):
                if place == seen:
                    return kept.first + offset
                place = behind
            if place == seen:
                return kept.first + len(kept.items)
        raise ApiError(
            ApiCode.INVALID_ARGUMENT,
            field,
            f"is {seen}; this stream is kept from {kept.begin_place} to {kept.end_place}, and is "
            "read on from where a piece of it ended",
        )

    async def _pump(self, kept: _Kept[T]) -> None:
        """Take from the source what there is room for."""
        try:
            async with aclosing(kept.source) as items:
                async for item in items:
                    await self._room(kept)
                    kept.end_place += self._steps_of(item)
                    size = self._size_of(item)
                    kept.num_bytes += size
                    kept.items.append((kept.end_place, item, size))
                    kept.note()
        except ApiError as error:
            kept.failure = error
        except asyncio.CancelledError:
            kept.failure = ApiError(ApiCode.UNAVAILABLE, "", "this stream was given up")
            raise
        except Exception as error:
            kept.failure = unexpected_error(error, "a stream that can be resumed")
        finally:
            kept.done = True
            kept.note()

    async def _room(self, kept: _Kept[T]) -> None:
        while kept.num_bytes >= self._most_kept_bytes:
            if kept.first < kept.num_read:
                kept.begin_place, _, size = kept.items.popleft()
                kept.num_bytes -= size
                kept.first += 1
            else:
                await kept.changed.wait()

    async def _read(
        self, key: tuple[str, str], kept: _Kept[T], number: int
    ) -> AsyncGenerator[T, None]:
        reader = kept.reader = object()
        if kept.timer is not None:
            kept.timer.cancel()
        kept.num_read = number
        kept.note()
        try:
            while True:
                if kept.reader is not reader:
                    raise ApiError(ApiCode.ABORTED, "", "this stream is read by another call now")
                changed = kept.changed
                if kept.num_read < kept.first + len(kept.items):
                    item = kept.items[kept.num_read - kept.first][1]
                    kept.num_read += 1
                    kept.note()
                    yield item
                elif kept.failure is not None:
                    raise kept.failure
                elif kept.done:
                    return
                else:
                    await changed.wait()
        finally:
            if kept.reader is reader and self._streams.get(key) is kept:
                kept.reader = None
                if kept.failure is not None and not kept.end_place:
                    self._drop(key)  # it never began
                else:
                    loop = asyncio.get_running_loop()
                    kept.timer = loop.call_later(kept.grace_seconds, self._drop, key)

    def _drop(self, key: tuple[str, str]) -> None:
        kept = self._streams.pop(key)
        if kept.timer is not None:
            kept.timer.cancel()
        if kept.pump is not None:
            kept.pump.cancel()
