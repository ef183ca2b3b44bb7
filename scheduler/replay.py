"""Replays recorded requests on simulated groups: what would this traffic do to that memory?

Drives the real scheduler and the real placement over simulated time, or contiguous servers with
the same memory and device in their place. A group's steps follow one another on its own clock;
arrivals come in between and are bound by the books of that moment. Units: simulated seconds,
tokens, blocks.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum

from blockyard.scheduler.simulated.arrivals import Arrival
from blockyard.scheduler.simulated.binder import Binder
from blockyard.scheduler.simulated.fleet import Fleet, ScaledGroups
from blockyard.scheduler.simulated.group import SimulatedGroup
from blockyard.scheduler.simulated.records import ReplayRecords

__all__ = ["BACKLOG", "Feed", "ReplayStalled", "run_replay"]

BACKLOG = 16
"""Requests that always wait in a saturated group; more than a scheduler looks at in a step."""


class Feed(StrEnum):
    """When requests come.

    `recorded` at their recorded times; `saturate` whenever fewer than `BACKLOG` wait in a group;
    `single` whenever a group has no other.
    """

    RECORDED = "recorded"
    SATURATE = "saturate"
    SINGLE = "single"


class ReplayStalled(RuntimeError):
    """Requests wait in a group that computes nothing and that nobody will wake."""


def run_replay(
    arrivals: Iterable[Arrival],
    groups: Sequence[SimulatedGroup],
    records: ReplayRecords,
    feed: Feed = Feed.RECORDED,
    *,
    run_ahead: bool = True,
    scaled: ScaledGroups | None = None,
) -> Fleet | None:
    """Serve all arrivals to their end.

    Args:
        arrivals: in order of time; read as they are needed, so they may be any number.
        groups: idle, at time 0.
        records: what `groups` add to. With `saturate` its memory is looked at until no more
            requests are left to keep the queues filled.
        feed: when requests come.
        run_ahead: do steady decode steps many at once; the books are the same either way.
        scaled: how many of the groups are there at a time; None: all of them.

    Returns:
        What has scaled, if anything has.

    Raises:
        ReplayStalled: a group cannot go on.
        ValueError: requests that do not come at recorded times leave nothing to scale by.
    """
    if scaled is not None and feed is not Feed.RECORDED:
        raise ValueError("groups are scaled by recorded times; leave out what feeds them otherwise")
    loop = _Loop(groups, records, run_ahead, scaled)
    if feed is Feed.RECORDED:
        loop.by_time(iter(arrivals))
    elif feed is Feed.SATURATE:
        loop.fed(iter(arrivals), lambda group: group.num_queued < BACKLOG, measure=True)
    else:
        loop.fed(iter(arrivals), lambda group: group.num_requests == 0, measure=False)
    end = records.simulated_seconds
    for group in groups:
        group.account(end)
        if group.num_requests:
            raise ReplayStalled(
                f"group {group.group_id} is left with {group.num_requests} requests at "
                f"{end:.3f} s and plans nothing"
            )
    return loop.fleet


class _Loop:
    """Ends of steps in order of time, and what happens between them."""

    def __init__(
        self,
        groups: Sequence[SimulatedGroup],
        records: ReplayRecords,
        run_ahead: bool,
        scaled: ScaledGroups | None,
    ) -> None:
        self._groups = groups
        self._records = records
        self._run_ahead = run_ahead
        self._binder = Binder(groups)
        self.fleet = None if scaled is None else Fleet(groups, self._binder, scaled)
        # Requests that no group could be found for.
        self._unbound: deque[Arrival] = deque()
        self._ends: list[tuple[float, int]] = []
        # When what each group does ends; other entries of the heap are void.
        self._end_of: list[float | None] = [None] * len(groups)

    def by_time(self, arrivals: Iterator[Arrival]) -> None:
        """Requests come at their recorded times and are bound to a group then."""
        fleet = self.fleet
        if fleet is None:
            for index in range(len(self._groups)):
                self._binder.open(index)
        arrival = next(arrivals, None)
        while arrival is not None or self._ends or self._unbound:
            until = math.inf if arrival is None else arrival.seconds
            due = math.inf if fleet is None else fleet.next_event
            if self._ends and self._ends[0][0] <= min(until, due):
                now, index = heapq.heappop(self._ends)
                if self._end_of[index] == now:
                    self._groups[index].finish(now)
                    self._begin(index, now, ahead=self._run_ahead)
            elif fleet is not None and due <= until:
                fleet.step(due, len(self._unbound))
                while self._unbound and self._bind(self._unbound[0], due):
                    self._unbound.popleft()
            elif arrival is not None:
                if self._unbound or not self._bind(arrival, until):
                    self._unbound.append(arrival)
                arrival = next(arrivals, None)

    def fed(
        self,
        arrivals: Iterator[Arrival],
        hungry: Callable[[SimulatedGroup], bool],
        *,
        measure: bool,
    ) -> None:
        """Each group takes the next request whenever it is hungry."""
        exhausted = False
        for index in range(len(self._groups)):
            heapq.heappush(self._ends, (0.0, index))
        started: set[int] = set()
        while self._ends:
            now, index = heapq.heappop(self._ends)
            group = self._groups[index]
            if index in started:
                group.finish(now)
            started.add(index)
            while not exhausted and hungry(group):
                arrival = next(arrivals, None)
                if arrival is None:
                    exhausted = True
                    break
                group.submit(arrival, now)
            if measure and exhausted and not group.num_queued:
                records = self._records
                records.measured_until = min(records.measured_until or math.inf, now)
            self._begin(index, now, ahead=self._run_ahead)

    def _begin(self, index: int, now: float, *, ahead: bool) -> None:
        end = self._groups[index].begin(now, ahead=ahead)
        self._expect(index, end)
        if end is None and self.fleet is not None:
            self.fleet.note_idle(index, now)

    def _expect(self, index: int, end: float | None) -> None:
        self._end_of[index] = end
        self._binder.note(index)
        if end is not None:
            heapq.heappush(self._ends, (end, index))

    def _bind(self, arrival: Arrival, now: float) -> bool:
        """Hand a request to a group, in the middle of what that does; False when none is up."""
        known = self._known_blocks(arrival, now) if arrival.prefix_ids else {}
        index = self._binder.choose(arrival.prompt_tokens, now, known)
        if index is None:
            return False
        group = self._groups[index]
        if self._end_of[index] is None:
            group.submit(arrival, now, arrival.seconds)
            # Others may come at the same moment, and find the step begun.
            self._begin(index, now, ahead=False)
            return True
        sooner = group.cut(now)
        if sooner is not None:
            self._expect(index, sooner)
        group.submit(arrival, now, arrival.seconds)
        self._binder.note(index)
        return True

    def _known_blocks(self, arrival: Arrival, now: float) -> dict[int, int]:
        """Groups where the begin of a prompt can be found, and how many blocks of it."""
        known = {}
        for index in self._binder.open_groups:
            group = self._groups[index]
            if num_blocks := group.known_blocks(arrival):
                if group.forgets_by(now):
                    self._expect(index, group.settle(now))
                    num_blocks = group.known_blocks(arrival)
                known[index] = num_blocks
        return known
