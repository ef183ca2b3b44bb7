"""Steps that a group has been sent and that have not ended, the oldest first.

Knows neither scheduler nor group: only that steps end in the order in which they were started.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any

from blockyard.scheduler.plan import StepResult

__all__ = ["StepsUnderWay"]


class StepsUnderWay:
    """What one step loop waits for."""

    def __init__(self) -> None:
        self._steps: deque[asyncio.Task[StepResult]] = deque()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._steps)

    def start(self, step: Coroutine[Any, Any, StepResult]) -> None:
        """One more step begins as soon as the event loop gets to it."""
        self._steps.append(asyncio.create_task(step))

    async def end_oldest(self, unless: asyncio.Event | None = None) -> StepResult | None:
        """Wait for the oldest step to end; it is under way no more.

        None when `unless` is set before that; it is cleared then. What the step raised is raised.
        """
        oldest = self._steps[0]
        if unless is not None:
            changed = asyncio.create_task(unless.wait())
            try:
                await asyncio.wait((oldest, changed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            unless.clear()
            if not oldest.done():
                return None
        result = await oldest
        self._steps.popleft()
        return result

    async def abandon(self) -> None:
        """Nobody waits for any of them any more."""
        for step in self._steps:
            step.cancel()
        await asyncio.gather(*self._steps, return_exceptions=True)
        self._steps.clear()
