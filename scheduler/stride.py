"""One step of those who decode in lockstep: their columns, and what a plan says of them.

Knows nothing of who is due when. Units: tokens.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from blockyard.scheduler.request import Request

__all__ = ["LockstepColumns", "Stride"]

_urgency = attrgetter("urgency")


class LockstepColumns(NamedTuple):
    """Columns of those in lockstep, most urgent first. All are parallel.

    Whoever comes or goes while a step in flight has them finds them in a copy.
    """

    requests: list[Request]
    names: list[str]
    choices: list[int]
    tokens: list[list[int]]
    """The requests' own lists."""

    def place(self, request: Request) -> int:
        """Index of a request's row, or where it would be."""
        return bisect_left(self.requests, request.urgency, key=_urgency)


@dataclass(slots=True, eq=False)
class Stride:
    """One step of theirs in flight.

    Attributes:
        rows: who took part.
        number: steps that had been planned before.
        handles, starts, token_ids: as in the plan.
        apart: who has fallen out since; their rows are settled one by one.
    """

    rows: LockstepColumns
    number: int
    handles: tuple[int, ...]
    starts: tuple[int, ...]
    token_ids: tuple[int, ...]
    apart: list[Request] = field(default_factory=list)

    def settled(self, sampled: tuple[int, ...]) -> tuple[LockstepColumns, tuple[int, ...]]:
        """Rows of those who have not fallen out, with their tokens; `sampled` are those of all."""
        if not self.apart:
            return self.rows, sampled
        kept: tuple[list[Any], ...] = self.rows
        columns = [*map(list, kept), list(sampled)]
        for place in sorted(map(self.rows.place, self.apart), reverse=True):
            for column in columns:
                del column[place]
        return LockstepColumns._make(columns[:-1]), tuple(columns[-1])

    def rows_apart(self, sampled: tuple[int, ...]) -> list[tuple[Request, int, int]]:
        """Who has fallen out since, with the handle that it had and the token it has sampled."""
        places = map(self.rows.place, self.apart)
        return [
            (request, self.handles[place], sampled[place])
            for request, place in zip(self.apart, places, strict=True)
        ]
