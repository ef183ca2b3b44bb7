"""One stream that is kept for a while: what it gave last, who reads it, and how dear it is.

Items are at places, which are counted by the caller's own measure from 0; several may be at one.
Whoever has seen a place is given all that is at it or behind it, so of the items at the first place
that is kept none is missing. Knows no transport. Units: seconds, bytes.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Hashable, Mapping
from enum import IntEnum
from typing import Generic, TypeVar

from blockyard.cluster.request.api_error import ApiCode, ApiError

__all__ = ["Hold", "KeptStream", "choose_leaving"]

STALLED_SECONDS = 30.0
"""A reader that takes nothing for so long, though there is something, has as good as left."""

T = TypeVar("T")
Name = TypeVar("Name", bound=Hashable)


class Hold(IntEnum):
    """What is lost if a stream is kept no longer: the more, the higher."""

    ENDED = 0
    """Nobody reads it, and it has ended."""
    STALLED = 1
    """Its reader takes nothing any more."""
    UNREAD = 2
    """Its reader was cut off, and may come back."""
    READ = 3
    """It is read: it would go on, and end when its reader is cut off."""


class KeptStream(Generic[T]):
    """What a stream gave last, and who reads it."""

    def __init__(
        self, source: AsyncGenerator[T, None], grace_seconds: float, most_bytes: int, now: float
    ) -> None:
        self.source = source
        self.grace_seconds = grace_seconds
        # Items with the place behind each; `first` is the number of the first one kept.
        self.items: deque[tuple[int, T, int]] = deque()
        self.first = 0
        self.begin_place = self.end_place = 0
        self.num_read = 0
        self.done = False
        self.kept = True
        """Whether it may be resumed; else it ends with its reader."""
        self.failure: ApiError | None = None
        self.reader: object | None = None
        self.read_at = now
        self.changed = asyncio.Event()
        self.pump: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._most_bytes = most_bytes
        self._num_bytes = 0

    def note(self) -> None:
        """Wake whoever waits for a change."""
        self.changed.set()
        self.changed = asyncio.Event()

    def hold(self, now: float) -> Hold:
        """How dear it is."""
        if self.reader is None:
            return Hold.ENDED if self.done else Hold.UNREAD
        waits = self.num_read < self.first + len(self.items)
        return Hold.STALLED if waits and now - self.read_at >= STALLED_SECONDS else Hold.READ

    async def put(self, item: T, steps: int, size: int) -> None:
        """Add an item that advances the place by so many steps, once there is room for it."""
        while self._num_bytes >= self._most_bytes:
            if not self._forget_place():
                if self.num_read == self.first + len(self.items):
                    break  # all are at one place, and read: the next one is the way out
                await self.changed.wait()
        self.end_place += steps
        self._num_bytes += size
        self.items.append((self.end_place, item, size))
        self.note()

    def take(self, now: float) -> T:
        """The next item for its reader; there must be one."""
        item = self.items[self.num_read - self.first][1]
        self.num_read += 1
        self.read_at = now
        self.note()
        return item

    @property
    def has_unread(self) -> bool:
        """Whether there is a next item."""
        return self.num_read < self.first + len(self.items)

    def number_at(self, seen: int, field: str) -> int:
        """The first item behind a place, those that advance nothing there included.

        Raises:
            ApiError: INVALID_ARGUMENT naming `field`: it has not come so far, no item ended there,
                or what follows is not kept any more.
        """
        if self.begin_place <= seen <= self.end_place:
            place = self.begin_place
            for offset, (behind, _, _) in enumerate(self.items):
                if place == seen:
                    return self.first + offset
                place = behind
            if place == seen:
                return self.first + len(self.items)
        raise ApiError(
            ApiCode.INVALID_ARGUMENT,
            field,
            f"is {seen}; this stream is kept from {self.begin_place} to {self.end_place}, and is "
            "read on from where a piece of it ended",
        )

    def _forget_place(self) -> bool:
        """Forget the first place that is kept, with all at it; False while it may be needed.

        | items at `begin_place` that advance nothing | the next, which advances | at its end ...
        | forgotten                                   | forgotten                | stay
        """
        for offset, (behind, _, _) in enumerate(self.items):
            if self.first + offset >= self.num_read:
                return False
            if behind > self.begin_place:
                for _ in range(offset + 1):
                    self.begin_place, _, size = self.items.popleft()
                    self._num_bytes -= size
                self.first += offset + 1
                return True
        return False


def choose_leaving(
    streams: Mapping[tuple[str, Name], KeptStream[T]], tenant: str, now: float
) -> tuple[str, Name] | None:
    """Which stream is kept no longer so that another one of a tenant may be; None: none is.

    Keys begin with the tenant. What nobody misses goes first, of who has most; never of a tenant
    that has fewer than this one. What somebody may miss goes where that makes shares more even.
    """
    counts = Counter(owner for owner, _ in streams)
    own = counts[tenant]

    def may_leave(owner: str, hold: Hold) -> bool:
        if hold in (Hold.ENDED, Hold.STALLED):
            return counts[owner] >= own
        return counts[owner] >= own + 2

    found = [
        (hold, -counts[key[0]], stream.read_at, number, key)
        for number, (key, stream) in enumerate(streams.items())
        if may_leave(key[0], hold := stream.hold(now))
    ]
    return min(found, key=lambda each: each[:4])[4] if found else None
