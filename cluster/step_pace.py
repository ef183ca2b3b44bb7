"""When to plan the step behind the one that runs: a short lead before that one is expected to end.

Earlier, and whoever comes meanwhile waits a step longer; later, and the workers wait for the plan.
How long a step takes is learned from steps like it; the lead is what planning, the way to the
workers and back, and the timer take, as measured, and how far all these differ. Knows no scheduler
and no clock: it is told times. Where it knows nothing it says at once. Units: seconds on
the caller's clock.
"""

import math
from collections import deque
from dataclasses import dataclass

from blockyard.scheduler.plan import StepPlan, StepResult

__all__ = ["StepPace"]

_MEMORY = 8
"""About so many measurements back an average remembers."""

_WILD = 4.0
"""What is measured counts as at most so many times longer than is known: it may have waited for
something that seldom happens. A step that is so many times shorter shows that what is known is no
longer true: the first of a kind may have compiled something. So does the second of anything."""

_DEVIATIONS = 2.0
"""Mean deviations of all that is measured that the lead covers: about one plan in twenty comes too
late. To be late costs everybody, to be early only those who come meanwhile."""

_SHORTEST_WAIT = 0.001
"""Timers are no more exact than that: a newcomer waits so much longer at most, and none is set."""

_LEVELS = 4
"""Steps are alike when rows and tokens are equal to about a fifth: so many kinds for each doubling.
Kinds and no curve: a device's time is flat, steep and stepped in turn."""

_MOST_AHEAD = 64
"""After so many steps that were sent ahead one is sent alone: only that shows how long the way is.
It costs 1/64 of what sending ahead gains."""


class StepPace:
    """Of one engine, with at most two steps under way. They end in the order they were sent in."""

    def __init__(self) -> None:
        self._lengths: dict[tuple[int, int], _Length] = {}
        self._planning = _Average()
        self._way = _Average()
        self._lateness = _Average()
        self._under_way: deque[_Sent] = deque()
        self._arrived = -math.inf
        self._num_ahead = 0
        self._due: float | None = None  # of the oldest step; None: not known yet

    def sent(self, plan: StepPlan, began: float, now: float) -> None:
        """A plan that was begun at `began` is on its way."""
        self._planning.add(now - began)
        alone = not self._under_way
        self._num_ahead = 0 if alone else self._num_ahead + 1
        kind = _level(len(plan.token_ids)), _level(len(plan.handles))
        self._under_way.append(_Sent(kind, now, alone))
        if alone:
            self._due = None

    def ended(self, result: StepResult, arrived: float) -> None:
        """The oldest step's result came at `arrived`."""
        step = self._under_way.popleft()
        if step.alone:
            worked = result.compute_seconds + result.copy_seconds
            self._way.add(max(0.0, arrived - step.at - worked))
        self._lengths.setdefault(step.kind, _Length()).add(max(0.0, arrived - self._begin(step)))
        self._arrived = arrived
        self._due = None

    def wait_seconds(self, now: float) -> float:
        """How long the next plan can wait; 0: make it now, infinity: the oldest step ends first."""
        if not self._under_way:
            return 0.0
        if self._due is None:
            self._due = self._when_due(now)
        wait = self._due - now
        if wait < _SHORTEST_WAIT:
            self._due = -math.inf
            return 0.0
        return wait

    def rang(self, now: float) -> None:
        """So long was waited, and it is `now`: from here on the next plan is due.

        That may be before the time that was told, should the caller's timer run on another clock.
        """
        if self._due is not None:
            self._lateness.add(max(0.0, now - self._due))
        self._due = -math.inf

    def abandoned(self) -> None:
        """Whatever is under way never ends."""
        self._under_way.clear()
        self._due = None

    def _when_due(self, now: float) -> float:
        step = self._under_way[0]
        length = self._lengths.get(step.kind)
        if length is None:
            return -math.inf
        # At first more often, for the first steps are not like those to come.
        if self._num_ahead >= min(_MOST_AHEAD, 2**self._way.count):
            return math.inf
        ends = self._begin(step) + length.mean
        due = ends - _lead(length, self._planning, self._way, self._lateness)
        if due - now < _SHORTEST_WAIT <= ends - _lead(length, self._planning, self._way) - now:
            # No timer is set for fear of its lateness, and none shows whether it is as late yet.
            self._lateness.fade()
        return due

    def _begin(self, step: "_Sent") -> float:
        """When a step could begin, put off by the way back as all that is seen from here."""
        return max(self._arrived, step.at + self._way.mean)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A step under way: its kind, when it was sent, and whether nothing else was under way then."""

    kind: tuple[int, int]
    at: float
    alone: bool


class _Average:
    """Of all measurements while they are few, then exponential; and how far they are from it."""

    def __init__(self) -> None:
        self.mean = 0.0
        self.deviation = 0.0
        self.count = 0

    def add(self, seconds: float) -> None:
        if self.count == 1 and seconds * _WILD <= self.mean:
            self.count = 0
        if self.count:
            seconds = min(seconds, _WILD * max(self.mean, _SHORTEST_WAIT))
        self.count = min(self.count + 1, _MEMORY)
        error = seconds - self.mean
        self.mean += error / self.count
        if self.count > 1:
            # Twice as fast: who finds that nothing is as it was plans early before it plans late.
            self.deviation += (abs(error) - self.deviation) * 2 / _MEMORY

    def fade(self) -> None:
        """Forget as much as one measurement of nothing would."""
        self.mean -= self.mean / _MEMORY
        self.deviation -= self.deviation / _MEMORY


class _Length(_Average):
    """How long steps of one kind take."""

    def add(self, seconds: float) -> None:
        if seconds * _WILD <= self.mean or not self.count:
            self.mean, self.count = seconds, 1
            self.deviation = seconds / _MEMORY  # one step says nothing of others
        else:
            super().add(seconds)


def _lead(length: _Average, *parts: _Average) -> float:
    """How long before its expected end the plan behind a step is begun."""
    # They differ independently of one another.
    deviation = math.hypot(length.deviation, *(part.deviation for part in parts))
    return sum(part.mean for part in parts) + _DEVIATIONS * deviation


def _level(count: int) -> int:
    """Counts that are nearly equal have the same."""
    return int(_LEVELS * math.log2(count)) if count else -1
