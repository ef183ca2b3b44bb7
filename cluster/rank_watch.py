"""Finds ranks that are stuck: alive, with their connection open, and no answer any more.

A dead rank is told by the end of its connection. A stopped one is told by nothing but silence, and
a long step is silent too; so while a step takes long each rank is asked a question that another of
its threads answers at once. Knows no Ray. Units: seconds.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from blockyard.cluster.rank import RankDied, RankHandle

__all__ = ["RankWatch"]

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
LONG_STEP_SECONDS = 2.0
"""From then on ranks are asked whether they are there."""
ANSWER_SECONDS = 5.0
"""A rank that is silent for so long is stuck. With the two above: found within 8 seconds."""


class RankWatch:
    """Watches the ranks of one group.

    Args:
        stalled_seconds: how long work has waited since the last step ended.
        handles: the ranks as they are now, in rank order; empty while they are being replaced.
        end: ends a stuck rank's process and the group that it belongs to.
    """

    def __init__(
        self,
        stalled_seconds: Callable[[], float],
        handles: Callable[[], Sequence[RankHandle]],
        end: Callable[[int], None],
    ) -> None:
        self._stalled_seconds = stalled_seconds
        self._handles = handles
        self._end = end

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._stalled_seconds() < LONG_STEP_SECONDS:
                continue
            handles = tuple(self._handles())
            answers = await asyncio.gather(*map(_answers, handles))
            # What was asked of ranks that have been replaced meanwhile says nothing of the new.
            if handles != tuple(self._handles()):
                continue
            for rank, is_there in enumerate(answers):
                if not is_there and self._stalled_seconds() >= LONG_STEP_SECONDS:
                    logger.error("rank %d is stuck: no answer for %g s", rank, ANSWER_SECONDS)
                    self._end(rank)


async def _answers(handle: RankHandle) -> bool:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await handle.call("process_id")
    except TimeoutError:
        return False
    except RankDied:
        return True  # its connection ends, and tells so
    return True
