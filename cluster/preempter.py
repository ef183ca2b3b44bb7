"""Has the cheapest victims in a cluster give way to the more urgent when every group is full.

The central scheduler decides where, and what becomes of each victim; that group's engine preempts
by its own laws, in the way that was decided; the ingress, which has the journal of each, hands a
victim that moves to the group that takes it. Units: seconds.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from blockyard.cluster.books.central_books import CentralTally
from blockyard.cluster.relief import RecentMoves
from blockyard.scheduler.making_way import MakingWay, choose_way, with_way_made
from blockyard.scheduler.placement import Candidate
from blockyard.scheduler.standing import Waiting
from blockyard.scheduler.way_out import WayOut

__all__ = ["MakeWay", "PassOn", "Preempter"]


class MakeWay(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Central scheduler to engine: should these be preempted for that request, they go so."""

    beneficiary: str
    ways: tuple[WayOut, ...]


class PassOn(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Central scheduler to engine: let go of a request that waits; another group makes way for it.

    Answered by `Relieved`.
    """

    request_id: str
    taker: str


class _Group(Protocol):
    """A group as the central scheduler has it on its books."""

    candidate: Candidate
    draining: bool
    bound_at: float

    @property
    def post(self) -> Callable[[object], None]:
        """Tell its engine."""
        ...

    def bind(self, tokens: int, now: float) -> None:
        """So many tokens are on their way there."""
        ...


class Preempter:
    """The central scheduler's side.

    Args:
        clock: seconds.
        moves: what has moved just now; shared with who moves something else.
        wall_clock: seconds since 1970.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        moves: RecentMoves,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._moves = moves
        self.tally = CentralTally(wall_clock)

    def place(
        self, needy: Waiting, candidates: Sequence[Candidate], groups: Mapping[str, _Group]
    ) -> str | None:
        """The group for a request that none can start as they are; None: it must wait anywhere.

        `candidates` are as they look to that request.
        """
        if not any(_is_before_somebody(needy, candidate) for candidate in candidates):
            return None
        way = choose_way(needy, candidates)
        if way is None:
            return None
        (chosen,) = (one for one in candidates if one.group_id == way.group_id)
        self._make(way, needy, chosen, groups)
        return way.group_id

    def pass_on(self, groups: Mapping[str, _Group]) -> None:
        """Have one that waits go where somebody must give way to it, if it waits in vain.

        `groups` are all of one model that take requests.
        """
        candidates = [group.candidate for group in groups.values()]
        for group_id, group in groups.items():
            standing = group.candidate.standing
            needy = standing.waiting if standing is not None else None
            if needy is None or not needy.movable or self._moves.has(group_id):
                continue
            others = [one for one in candidates if not self._moves.has(one.group_id)]
            if not any(_is_before_somebody(needy, one) for one in others):
                continue
            way = choose_way(needy, others, waits_at=group_id)
            if way is None:
                continue
            self._make(way, needy, groups[way.group_id].candidate, groups, came_from=group_id)
            self._moves.note(group_id, way.group_id)
            group.post(PassOn(needy.request_id, way.group_id))
            return

    def _make(
        self,
        way: MakingWay,
        needy: Waiting,
        chosen: Candidate,
        groups: Mapping[str, _Group],
        came_from: str = "",
    ) -> None:
        standing = groups[way.group_id].candidate.standing
        tokens = {one.request_id: one.tokens for one in standing.yielding} if standing else {}
        groups[way.group_id].candidate = with_way_made(chosen, needy, way)
        groups[way.group_id].bound_at = self._clock()
        if not way.victims:
            return
        for victim in way.victims:
            if victim.taker:
                groups[victim.taker].bind(tokens[victim.request_id], self._clock())
        self.tally.note_way(way, needy.priority, came_from)
        groups[way.group_id].post(MakeWay(needy.request_id, way.victims))


def _is_before_somebody(needy: Waiting, candidate: Candidate) -> bool:
    """Whether somebody who runs or waits there is less urgent."""
    standing = candidate.standing
    if standing is None:
        return False
    ahead = standing.waiting
    if ahead is not None and ahead.priority < needy.priority:
        return True
    return bool(standing.yielding) and standing.yielding[0].priority < needy.priority
