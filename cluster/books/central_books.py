"""The central scheduler's books: every preemption of any group, what it has decided, who waits.

Counts come from the groups' own books; those of a group that has gone, or has begun to count anew,
are kept. A central scheduler that starts anew knows those of the groups that are there. Units:
requests, blocks, seconds.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from blockyard.cluster.books.group_totals import GroupTotals
from blockyard.cluster.books.waiting_counts import NOBODY_WAITS, WaitingCounts
from blockyard.scheduler.ledger import GroupLedger, MoveCounts, PreemptionCounts
from blockyard.scheduler.making_way import MakingWay
from blockyard.scheduler.way_out import Way

__all__ = [
    "AskCentralBooks",
    "CentralBooks",
    "CentralBooksAnswer",
    "CentralTally",
    "WayMade",
]

_MOST_REMEMBERED = 32


@dataclass(frozen=True, slots=True)
class WayMade:
    """One decision: in a full cluster somebody was to give way to a more urgent request.

    Attributes:
        at: seconds since 1970.
        group_id: where.
        came_from: the group in whose queue the request waited; empty: it had just come.
        for_priority, priority: of the request, and of the most urgent victim.
        swapped, recomputed, moved: victims, by what was to become of them.
        seconds: what that was to cost; 0 where rates are not measured yet.
    """

    at: float
    group_id: str
    came_from: str
    for_priority: int
    priority: int
    swapped: int
    recomputed: int
    moved: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CentralBooks:
    """What the central scheduler knows of preemptions, and of requests that wait for a group.

    Attributes:
        preempted: of all groups together.
        decisions: how often it has chosen who gives way.
        swapped, recomputed, moved: victims that it has chosen, by what was to become of them;
            those that engines did preempt so are `preempted.ordered`.
        relieved: requests that went from one group's queue to another group.
        recent: its last decisions, the newest last.
        moves: of all groups together.
        waiting: who waits.
    """

    preempted: PreemptionCounts
    decisions: int
    swapped: int
    recomputed: int
    moved: int
    relieved: int
    recent: tuple[WayMade, ...]
    moves: MoveCounts
    waiting: WaitingCounts = NOBODY_WAITS


class AskCentralBooks(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Ingress to central scheduler: tell me your books."""

    ticket: int


class CentralBooksAnswer(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The books as they stood."""

    ticket: int
    books: CentralBooks


class CentralTally:
    """Keeps the books. `wall_clock` tells seconds since 1970."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self._preempted = GroupTotals(PreemptionCounts())
        self._moves = GroupTotals(MoveCounts())
        self._decisions = 0
        self._victims = dict.fromkeys(Way, 0)
        self._recent: deque[WayMade] = deque(maxlen=_MOST_REMEMBERED)

    def note_group(self, group_id: str, ledger: GroupLedger) -> None:
        """A group's books have come."""
        self._preempted.note(group_id, ledger.preempted)
        self._moves.note(group_id, ledger.moves)

    def note_gone(self, group_id: str) -> None:
        """A group has gone; what it has done stays."""
        self._preempted.note_gone(group_id)
        self._moves.note_gone(group_id)

    def note_way(self, way: MakingWay, for_priority: int, came_from: str = "") -> None:
        """It was decided who gives way."""
        counts = dict.fromkeys(Way, 0)
        for victim in way.victims:
            counts[victim.way] += 1
            self._victims[victim.way] += 1
        self._decisions += 1
        self._recent.append(
            WayMade(
                self._wall_clock(),
                way.group_id,
                came_from,
                for_priority,
                way.priority if way.priority is not None else for_priority,
                counts[Way.SWAP],
                counts[Way.RECOMPUTE],
                counts[Way.MOVE],
                way.seconds if way.seconds < float("inf") else 0.0,
            )
        )

    def books(self, relieved: int, waiting: WaitingCounts = NOBODY_WAITS) -> CentralBooks:
        """All of it as it stands."""
        return CentralBooks(
            self._preempted.total(),
            self._decisions,
            self._victims[Way.SWAP],
            self._victims[Way.RECOMPUTE],
            self._victims[Way.MOVE],
            relieved,
            tuple(self._recent),
            self._moves.total(),
            waiting,
        )
