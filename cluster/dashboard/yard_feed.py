"""When the yard page is told news: while somebody watches, and as often as looking costs little.

Nothing runs for nobody: a watcher's own call looks, and watchers of the same group share a look.
What takes long is looked at less often. Knows no HTTP. Units: seconds.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Protocol

from blockyard.cluster.dashboard.yard_view import YardView
from blockyard.cluster.dispatch import GroupYard
from blockyard.cluster.request.caller import ANYBODY, Caller

__all__ = ["MAX_CELLS", "YardFeed", "YardSource"]

MAX_CELLS = 4096
"""Cells of a picture: what a person can tell apart on a screen."""
_INTERVAL_SECONDS = 0.5
_LOOK_SHARE = 0.05
"""Most of the time that may go into looking."""


class YardSource(Protocol):
    """Where pictures come from: an ingress's way to its engines."""

    async def yards(self, group_id: str, max_cells: int) -> tuple[GroupYard, ...]:
        """Books of every group, and a picture of one, of the first when none has that id."""
        ...


@dataclass(slots=True)
class _Look:
    """The newest look at one group, and news made of it by tenant and whether that one sees all."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    yards: tuple[GroupYard, ...] = ()
    at: float = 0.0
    news: dict[tuple[str, bool], bytes] = field(default_factory=dict)
    taken_at: float = float("-inf")
    interval: float = 0.0
    watchers: int = 0


class YardFeed:
    """All watchers of one ingress."""

    def __init__(
        self,
        source: YardSource,
        interval_seconds: float = _INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        view: YardView | None = None,
    ) -> None:
        self._source = source
        self._view = view if view is not None else YardView()
        self._interval = interval_seconds
        self._clock = clock
        self._looks: dict[str, _Look] = {}
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Let every watch end by itself, so that none holds up a server that stops."""
        self._ended.set()

    async def watch(self, group_id: str, viewer: Caller = ANYBODY) -> AsyncGenerator[bytes, None]:
        """News of that group now and at each interval; a slow reader skips some."""
        self._forget_old()
        look = self._looks.setdefault(group_id, _Look())
        look.watchers += 1
        try:
            while not self._ended.is_set():
                yield await self._news(look, group_id, viewer)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(self._interval, look.interval)):
                        await self._ended.wait()
        finally:
            look.watchers -= 1

    def __len__(self) -> int:
        """Looks that are kept."""
        return len(self._looks)

    def _forget_old(self) -> None:
        """Forget looks that nobody shares any more: callers may ask for names without end."""
        now = self._clock()
        self._looks = {
            group_id: look
            for group_id, look in self._looks.items()
            if look.watchers or not self._is_old(look, now)
        }

    def _is_old(self, look: _Look, now: float) -> bool:
        return now - look.taken_at >= max(self._interval, look.interval)

    async def _news(self, look: _Look, group_id: str, viewer: Caller) -> bytes:
        async with look.lock:
            started = self._clock()
            if self._is_old(look, started):
                look.yards = await self._source.yards(group_id, MAX_CELLS)
                look.at = time.time()
                look.news = {}
                look.taken_at = self._clock()
                look.interval = (look.taken_at - started) / _LOOK_SHARE
            sight = (viewer.tenant, viewer.sees_all)
            if sight not in look.news:
                look.news[sight] = self._view.news(look.yards, look.at, viewer)
            return look.news[sight]
