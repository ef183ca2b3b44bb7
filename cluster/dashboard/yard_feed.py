"""What the yard page is told: books of every group and a picture of one pool, as JSON.

Nothing runs for nobody: a watcher's own call looks, and watchers of the same group share a look.
What takes long is looked at less often. Knows no HTTP. Units: seconds; ratios from 0 to 1.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from blockyard.cluster.dispatch import GroupYard
from blockyard.scheduler.contiguous.shadow_report import PolicyReport

__all__ = ["MAX_CELLS", "YardFeed", "YardSource", "yard_json"]

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
    """The newest look at one group."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    news: bytes = b""
    taken_at: float = float("-inf")
    interval: float = 0.0


class YardFeed:
    """All watchers of one ingress."""

    def __init__(
        self,
        source: YardSource,
        interval_seconds: float = _INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._interval = interval_seconds
        self._clock = clock
        self._looks: dict[str, _Look] = {}
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Let every watch end by itself, so that none holds up a server that stops."""
        self._ended.set()

    async def watch(self, group_id: str) -> AsyncGenerator[bytes, None]:
        """News of that group now and at each interval; a slow reader skips some."""
        look = self._looks.setdefault(group_id, _Look())
        while not self._ended.is_set():
            yield await self._news(look, group_id)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._interval, look.interval)):
                    await self._ended.wait()

    async def _news(self, look: _Look, group_id: str) -> bytes:
        async with look.lock:
            started = self._clock()
            if started - look.taken_at >= max(self._interval, look.interval):
                look.news = yard_json(await self._source.yards(group_id, MAX_CELLS), time.time())
                look.taken_at = self._clock()
                look.interval = (look.taken_at - started) / _LOOK_SHARE
            return look.news


def yard_json(yards: tuple[GroupYard, ...], now: float) -> bytes:
    """One line of JSON; a picture's cells are base64. `now` is in seconds since 1970."""
    return msgspec.json.encode({"time": now, "groups": [_group(yard) for yard in yards]})


def _group(found: GroupYard) -> dict[str, Any]:
    report, ledger = found.report, found.report.ledger
    slots = ledger.blocks.total * ledger.block_size
    return {
        "id": report.group_id,
        "model": report.model,
        "device": report.device,
        "dtype": report.dtype,
        "block_size": ledger.block_size,
        "step": ledger.step,
        "blocks": ledger.blocks,
        "host_blocks": ledger.host_blocks,
        "slots": ledger.slots,
        "requests": ledger.requests,
        "preempted": ledger.preempted,
        "stalled_steps": ledger.stalled_steps,
        "shares": {
            "tokens": ledger.slots.filled / slots,
            "reservation": ledger.slots.promised / slots,
            "internal": ledger.slots.empty_tail / slots,
            "external": 0.0,
        },
        "contiguous": [_contiguous(policy) for policy in report.books.shadow],
        "yard": found.yard,
    }


def _contiguous(policy: PolicyReport) -> dict[str, Any]:
    books = policy.books
    return {
        "policy": books.policy,
        "running": books.running,
        "queued": policy.queued,
        "shares": {
            "tokens": books.filled / books.capacity,
            "reservation": books.reservation / books.capacity,
            "internal": books.internal / books.capacity,
            # Free, and of no use for a request that needs more than the largest hole.
            "external": (books.free - books.largest_hole) / books.capacity,
        },
    }
