"""The books as a stream: looked at while somebody watches, sent when they have changed.

Nothing runs for nobody: each watcher's own call does the looking, and a watcher that reads slowly
is looked for less often. Knows no gRPC. Units: seconds.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.protos import cluster_pb2

__all__ = ["LedgerWatches"]

_INTERVAL = (0.1, 3600.0, 1.0)
"""Least, most, and what absent means."""
_HEARTBEAT = (1.0, 3600.0, 15.0)


class LedgerWatches:
    """All streams of the books that one server has open; `look` fetches the books."""

    def __init__(self, look: Callable[[], Awaitable[cluster_pb2.LedgerResponse]]) -> None:
        self._look = look
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Let every stream end by itself, so that none holds up a server that stops."""
        self._ended.set()

    async def watch(
        self, request: cluster_pb2.WatchLedgerRequest
    ) -> AsyncGenerator[cluster_pb2.LedgerResponse, None]:
        """The books now, at each change, and at each heartbeat. Raises `ApiError`."""
        interval = _seconds(request, "interval_seconds", _INTERVAL)
        heartbeat = _seconds(request, "heartbeat_seconds", _HEARTBEAT)
        told: cluster_pb2.LedgerResponse | None = None
        told_at = 0.0
        while not self._ended.is_set():
            books = await self._look()
            if told is None or not _same(books, told) or time.monotonic() - told_at >= heartbeat:
                yield books
                # Counted from when it was taken: a slow reader is not sent two in a row.
                told, told_at = books, time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._ended.wait()


def _same(books: cluster_pb2.LedgerResponse, told: cluster_pb2.LedgerResponse) -> bool:
    """Whether nothing has happened in between; that time has passed is no news."""
    return _without_age(books) == _without_age(told)


def _without_age(books: cluster_pb2.LedgerResponse) -> cluster_pb2.LedgerResponse:
    timeless = cluster_pb2.LedgerResponse()
    timeless.CopyFrom(books)
    for group in timeless.groups:
        for server in group.contiguous:
            server.behind_seconds = 0.0
    return timeless


def _seconds(
    request: cluster_pb2.WatchLedgerRequest, field: str, bounds: tuple[float, float, float]
) -> float:
    least, most, default = bounds
    if not request.HasField(field):
        return default
    value: float = getattr(request, field)
    # Written so that NaN is refused, too.
    if not least <= value <= most:
        raise ApiError(
            ApiCode.INVALID_ARGUMENT,
            field,
            f"{field} is {value:g}; it must be from {least:g} to {most:g}",
        )
    return value
