"""Steps that a group has been sent and that have not ended, the oldest first.

Knows neither scheduler nor group: only that steps end in the order in which they were started, and
when the next one is due. Units: seconds on the engine's clock.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from blockyard.cluster.step_pace import StepPace
from blockyard.scheduler.plan import StepPlan, StepResult

__all__ = ["StepsUnderWay"]


class StepsUnderWay:
    """What one step loop waits for."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._steps: deque[asyncio.Task[StepResult]] = deque()
        self._pace = StepPace()
        self._wait = 0.0  # until the next one is due, when that was asked last

    def __len__(self) -> int:
        """How many there are."""
        return len(self._steps)

    def start(self, step: Coroutine[Any, Any, StepResult], plan: StepPlan, began: float) -> None:
        """One more step begins as soon as the event loop gets to it.

        Its plan was begun at `began`.
        """
        self._steps.append(asyncio.create_task(step))
        self._pace.sent(plan, began, self._clock())

    def is_next_due(self) -> bool:
        """Whether it is time to plan another one, were there room for it."""
        self._wait = self._pace.wait_seconds(self._clock())
        return not self._wait

    async def end_oldest(self, unless: asyncio.Event | None = None) -> StepResult | None:
        """Wait for the oldest step to end; it is under way no more.

        None when another one has become due before that. Where one was due already, and nothing
        came of it: when `unless` is set, which clears it. Without `unless` the step ends in any
        case. What the step raised is raised.
        """
        oldest = self._steps[0]
        if unless is not None and self._wait < math.inf:
            if self._wait:
                await self._until_due(oldest)
            else:
                await _first_of(oldest, unless)
            if not oldest.done():
                return None
        result = await oldest
        self._steps.popleft()
        self._pace.ended(result, self._clock())
        return result

    async def abandon(self) -> None:
        """Nobody waits for any of them any more."""
        for step in self._steps:
            step.cancel()
        await asyncio.gather(*self._steps, return_exceptions=True)
        self._steps.clear()
        self._pace.abandoned()

    async def _until_due(self, oldest: asyncio.Task[StepResult]) -> None:
        # A timer that ends with this wait, however that ends.
        await asyncio.wait((oldest,), timeout=self._wait)
        if not oldest.done():
            self._pace.rang(self._clock())


async def _first_of(oldest: asyncio.Task[StepResult], unless: asyncio.Event) -> None:
    changed = asyncio.create_task(unless.wait())
    try:
        await asyncio.wait((oldest, changed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        changed.cancel()
    unless.clear()
