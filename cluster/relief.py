"""Has a group that lacks blocks give waiting requests to one that has them.

The central scheduler decides and keeps the books; the engine picks who goes and lets go of them;
the ingress, which has the journal of each, hands it to the other group. Units: seconds.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from blockyard.scheduler.placement import Candidate
from blockyard.scheduler.relief import Relief, choose_relief
from blockyard.scheduler.request import RefusalCode, RequestRefused

__all__ = ["Relieve", "Relieved", "Reliever", "RequestMoved", "Yielded"]

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
    """Engine to ingress: these requests are not served here any more; that group has room."""

    request_ids: tuple[str, ...]
    taker: str


class RequestMoved(RequestRefused):
    """Ends a stream whose request is to go on at the group `taker`."""

    def __init__(self, taker: str) -> None:
        super().__init__(
            RefusalCode.UNAVAILABLE, "another group was to go on with it; send it again"
        )
        self.taker = taker


class _Group(Protocol):
    """A group as the central scheduler has it on its books."""

    candidate: Candidate
    draining: bool

    def post(self, message: object) -> None:
        """Tell its engine."""
        ...


class Reliever:
    """The central scheduler's side.

    Attributes:
        num_ordered: requests that engines were asked to let go of, at the most.
        num_moved: those that they let go of.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._touched: dict[str, float] = {}
        self.num_ordered = 0
        self.num_moved = 0

    def relieve(self, groups: Iterable[_Group]) -> Relief | None:
        """Move something among groups of one model if that helps; what was decided."""
        now = self._clock()
        self._touched = {g: t for g, t in self._touched.items() if now - t < RELIEF_SECONDS}
        open_groups = {
            group.candidate.group_id: group
            for group in groups
            if not group.draining and group.candidate.group_id not in self._touched
        }
        relief = choose_relief([group.candidate for group in open_groups.values()])
        if relief is not None:
            self._touched[relief.giver] = self._touched[relief.taker] = now
            self.num_ordered += relief.requests
            giver = open_groups[relief.giver]
            giver.post(Relieve(relief.taker, relief.requests, relief.tokens))
        return relief
