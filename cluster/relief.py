"""Has a group that lacks blocks give waiting requests to one that has them.

The central scheduler decides and keeps the books; the engine picks who goes and lets go of them;
the ingress, which has the journal of each, hands it to the other group. Units: seconds.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from blockyard.cluster.moves.consignment import Consignment
from blockyard.scheduler.placement import Candidate
from blockyard.scheduler.relief import Relief, choose_relief
from blockyard.scheduler.request import RefusalCode, RequestRefused

__all__ = ["RecentMoves", "Relieve", "Relieved", "Reliever", "RequestMoved", "Yielded"]

RELIEF_SECONDS = 0.5
"""Between two moves from or to one group: by then its books tell of the one before."""


class Relieve(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Central scheduler to engine: let go of so many requests, for another group to take."""

    taker: str
    requests: int
    tokens: int


class Relieved(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Engine to central scheduler: so many went; it may be none by now."""

    requests: int


class Yielded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Engine to ingress: a request is not served here any more; that group has room.

    Empty: whichever has. What it had computed here may be had for a while.
    """

    request_id: str
    taker: str
    consignment: Consignment | None = None


class RequestMoved(RequestRefused):
    """Ends a stream whose request is to go on at the group `taker`, with its blocks if it can."""

    def __init__(self, taker: str, consignment: Consignment | None = None) -> None:
        super().__init__(
            RefusalCode.UNAVAILABLE, "another group was to go on with it; send it again"
        )
        self.taker = taker
        self.consignment = consignment


class _Group(Protocol):
    """A group as the central scheduler has it on its books."""

    candidate: Candidate
    draining: bool

    @property
    def post(self) -> Callable[[object], None]:
        """Tell its engine."""
        ...


class RecentMoves:
    """Groups from which or to which something has just moved: their books do not tell yet."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._moved_at: dict[str, float] = {}

    def note(self, *group_ids: str) -> None:
        """Something moves from or to these now."""
        now = self._clock()
        self._moved_at = {g: t for g, t in self._moved_at.items() if now - t < RELIEF_SECONDS}
        self._moved_at.update(dict.fromkeys(group_ids, now))

    def has(self, group_id: str) -> bool:
        """Whether something has moved from or to that one just now."""
        moved_at = self._moved_at.get(group_id)
        return moved_at is not None and self._clock() - moved_at < RELIEF_SECONDS


class Reliever:
    """The central scheduler's side.

    Attributes:
        num_ordered: requests that engines were asked to let go of, at the most.
        num_moved: those that they let go of.
    """

    def __init__(self, moves: RecentMoves) -> None:
        self._moves = moves
        self.num_ordered = 0
        self.num_moved = 0

    def relieve(self, groups: Iterable[_Group]) -> Relief | None:
        """Move something among groups of one model if that helps; what was decided."""
        open_groups = {
            group.candidate.group_id: group
            for group in groups
            if not group.draining and not self._moves.has(group.candidate.group_id)
        }
        relief = choose_relief([group.candidate for group in open_groups.values()])
        if relief is not None:
            self._moves.note(relief.giver, relief.taker)
            self.num_ordered += relief.requests
            giver = open_groups[relief.giver]
            giver.post(Relieve(relief.taker, relief.requests, relief.tokens))
        return relief
