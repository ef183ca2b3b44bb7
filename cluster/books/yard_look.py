"""Draws the picture of an engine's pool between its steps: no step waits for more than a piece.

Knows the scheduler only as something to be drawn. Units: seconds.
"""

import asyncio

from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.yard_drawing import yard_pieces
from blockyard.scheduler.yard_map import YardMap

__all__ = ["look_at_yard"]

_PAUSE_SECONDS = 0.002
"""Between two pieces: a step takes several turns of the loop, and is not to meet one in each."""


async def look_at_yard(scheduler: Scheduler, max_cells: int) -> YardMap:
    """The picture in at most `max_cells` cells; see `yard_pieces`."""
    pieces = yard_pieces(scheduler, max_cells)
    while True:
        try:
            next(pieces)
        except StopIteration as drawn:
            yard: YardMap = drawn.value
            return yard
        await asyncio.sleep(_PAUSE_SECONDS)
