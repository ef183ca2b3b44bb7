"""Requests that wait at an ingress for a group of their model to come up, or to come back.

Bounded in number and in time. How many wait is told to whoever may start a group. Knows neither
groups nor wires. Units: seconds.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import msgspec

from blockyard.scheduler.request import RefusalCode, RequestRefused

__all__ = ["MAX_WAITING", "Unplaced", "WaitingRoom"]

Placed = TypeVar("Placed")

MAX_WAITING = 4096
"""Requests of one model that may wait here; as many as queue in a group by default."""
_FIRST_PAUSE_SECONDS = 0.1
_LAST_PAUSE_SECONDS = 2.0
"""Not every way back is announced: a group whose connection broke is still the one it was."""


class Unplaced(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Ingress to central scheduler: so many of my requests wait now for a group of a model."""

    model: str
    requests: int


class WaitingRoom:
    """Where requests of one ingress wait.

    Args:
        tell: told a model and how many requests wait for a group of it, whenever that changes.
        clock: seconds.
    """

    def __init__(
        self, tell: Callable[[str, int], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._changed = asyncio.Event()
        self._waiting: Counter[str] = Counter()

    def note_change(self) -> None:
        """The groups are others than before: who waits tries again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def retry(
        self,
        model: str,
        seconds: float,
        refusal: RequestRefused,
        attempt: Callable[[], Awaitable[Placed]],
        wanted: Callable[[], bool],
    ) -> Placed:
        """What `attempt` gives when it succeeds, tried again and again while it is `wanted`.

        Raises:
            RequestRefused: the last `refusal`; at once if it does not say that no group is there.
        """
        if seconds <= 0 or refusal.code is not RefusalCode.UNAVAILABLE:
            raise refusal
        async with aclosing(self.tries(model, seconds)) as tries:
            async for _ in tries:
                if refusal.code is not RefusalCode.UNAVAILABLE or not wanted():
                    break
                try:
                    return await attempt()
                except RequestRefused as refused:
                    refusal = refused
        raise refusal

    async def tries(self, model: str, seconds: float) -> AsyncGenerator[None, None]:
        """Each turn is a time to try again: when groups have changed, and now and then.

        Ends when `seconds` have passed. Must be closed by who leaves before.

        Raises:
            RequestRefused: EXHAUSTED when too many wait already.
        """
        if self._waiting[model] >= MAX_WAITING:
            raise RequestRefused(
                RefusalCode.EXHAUSTED,
                f"{MAX_WAITING} requests wait for a group of {model} already; try again later",
            )
        self._count(model, 1)
        try:
            deadline = self._clock() + seconds
            pause = _FIRST_PAUSE_SECONDS
            while (left := deadline - self._clock()) > 0:
                changed = self._changed
                try:
                    async with asyncio.timeout(min(pause, left)):
                        await changed.wait()
                except TimeoutError:
                    pause = min(2 * pause, _LAST_PAUSE_SECONDS)
                yield
        finally:
            self._count(model, -1)

    def _count(self, model: str, change: int) -> None:
        self._waiting[model] += change
        self._tell(model, self._waiting[model])
