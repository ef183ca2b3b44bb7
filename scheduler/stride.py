"""One step of those who decode in lockstep: rows that stay the same, and what a plan says of them.

Knows nothing of who is due when. Units: tokens.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from blockyard.scheduler.request import Request

__all__ = ["LockstepColumns", "LockstepRows", "Stride"]

_urgency = attrgetter("urgency")


class LockstepColumns(NamedTuple):
    """Columns of those in lockstep as they are now, most urgent first. All are parallel."""

    requests: list[Request]
    handles: list[int]
    names: list[str]
    choices: list[int]
    tokens: list[list[int]]
    """The requests' own lists."""

    def place(self, request: Request) -> int:
        """Index of a request's row, or where it would be."""
        return bisect_left(self.requests, request.urgency, key=_urgency)


class LockstepRows(NamedTuple):
    """The same columns as they were in a plan. One value serves as long as nobody comes or goes."""

    requests: tuple[Request, ...]
    handles: tuple[int, ...]
    names: tuple[str, ...]
    choices: tuple[int, ...]
    tokens: tuple[list[int], ...]

    def place(self, request: Request) -> int:
        """Index of a request's row."""
        return bisect_left(self.requests, request.urgency, key=_urgency)


@dataclass(slots=True, eq=False)
class Stride:
    """One step of theirs in flight.

    Attributes:
        rows: who took part.
        number: steps that had been planned before.
        starts, token_ids: as in the plan.
        apart: who has fallen out since; their rows are settled one by one.
    """

    rows: LockstepRows
    number: int
    starts: tuple[int, ...]
    token_ids: tuple[int, ...]
    apart: list[Request] = field(default_factory=list)

    def settled(self, sampled: tuple[int, ...]) -> tuple[LockstepRows, tuple[int, ...]]:
        """Rows of those who have not fallen out, with their tokens; `sampled` are those of all."""
        if not self.apart:
            return self.rows, sampled
        kept: tuple[Sequence[Any], ...] = self.rows
        columns = [*map(list, kept), list(sampled)]
        for place in sorted(map(self.rows.place, self.apart), reverse=True):
            for column in columns:
                del column[place]
        return LockstepRows._make(map(tuple, columns[:-1])), tuple(columns[-1])

    def rows_apart(self, sampled: tuple[int, ...]) -> list[tuple[Request, int, int]]:
        """Who has fallen out since, with the handle that it had and the token it has sampled."""
        places = map(self.rows.place, self.apart)
        return [
            (request, self.rows.handles[place], sampled[place])
            for request, place in zip(self.apart, places, strict=True)
        ]
