"""Streams that go on for a while when their reader is cut off, and are read on from where it stood.

What a stream has given is kept, up to a limit, until its grace is over: that long after its last
reader has left, whether it has ended or not. Then it is closed, which ends its request. A stream
that holds as much as it may goes no faster than it is read. All tenants share the places for such
streams; where there is none left the one who has most gives one up. Knows no transport and no
tokens. Units: seconds, bytes; places are counted by the caller's own measure, from 0.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Generic, TypeVar

from blockyard.cluster.request.api_error import RETRY_AFTER_SECONDS, ApiCode, ApiError
from blockyard.cluster.request.generation import unexpected_error
from blockyard.cluster.request.kept_stream import Hold, KeptStream, choose_leaving
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
        self._streams: dict[tuple[str, str], KeptStream[T]] = {}
        self._pumps: set[asyncio.Task[None]] = set()

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
        now = asyncio.get_running_loop().time()
        kept = KeptStream(source, grace_seconds, self._most_kept_bytes, now)
        self._streams[key] = kept
        kept.pump = asyncio.create_task(self._pump(kept), name="resumable-stream")
        self._pumps.add(kept.pump)
        kept.pump.add_done_callback(self._pumps.discard)
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
        number = kept.number_at(seen, field)
        async with aclosing(self._read(key, kept, number)) as items:
            async for item in items:
                yield item

    async def close(self) -> None:
        """Close every stream."""
        for key in list(self._streams):
            self._drop(key)
        pumps = list(self._pumps)
        for pump in pumps:  # those of streams that end with their readers, too
            pump.cancel()
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
        now = asyncio.get_running_loop().time()
        leaving = choose_leaving(self._streams, key[0], now)
        if leaving is not None:
            if self._streams[leaving].hold(now) is Hold.READ:
                self._streams.pop(leaving).kept = False
            else:
                self._drop(leaving)
            return
        raise ApiError(
            ApiCode.RESOURCE_EXHAUSTED,
            "",
            f"{self._most_streams} streams are kept to be resumed, as many as may be; try again, "
            "or ask for one that is not",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )

    async def _pump(self, kept: KeptStream[T]) -> None:
        """Take from the source what there is room for."""
        try:
            async with aclosing(kept.source) as items:
                async for item in items:
                    await kept.put(item, self._steps_of(item), self._size_of(item))
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

    async def _read(
        self, key: tuple[str, str], kept: KeptStream[T], number: int
    ) -> AsyncGenerator[T, None]:
        reader = kept.reader = object()
        if kept.timer is not None:
            kept.timer.cancel()
        kept.num_read, kept.read_at = number, asyncio.get_running_loop().time()
        kept.note()
        try:
            while True:
                if kept.reader is not reader:
                    raise ApiError(ApiCode.ABORTED, "", "this stream is read by another call now")
                changed = kept.changed
                if kept.has_unread:
                    yield kept.take(asyncio.get_running_loop().time())
                elif kept.failure is not None:
                    raise kept.failure
                elif kept.done:
                    return
                else:
                    await changed.wait()
        finally:
            if kept.reader is not reader:
                pass  # who reads it now is its last reader
            elif not kept.kept and kept.pump is not None:
                kept.pump.cancel()
            elif self._streams.get(key) is kept:
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
