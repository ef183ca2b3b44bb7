"""Where the seconds of a group's steps go, as histograms of their parts.

A few comparisons for each step, whatever is in it. Knows no metrics library, no scheduler and no
group: it is told times. Units: seconds on the caller's clock.

The parts of a step that runs alone add up to the time from the begin of its planning to the end of
its commit:

    plan     making the plan and handing it over
    wire     from there, or from the result before it if that came later, to its result, less
             what the worker tells of itself: both ways, and waiting for the event loop
    copy     blocks moved within, to and from the device
    forward  the worker's step, less copies and sampling
    sample   choosing tokens and telling their log probabilities. On a GPU, work that was launched
             runs on: what it takes shows where somebody waits for it, which is here
    commit   booking the result and telling readers
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

from blockyard.scheduler.plan import StepResult

__all__ = ["NO_STEPS", "STEP_BUCKETS", "STEP_PARTS", "PartTimes", "StepMeter", "StepTimes"]

STEP_PARTS = ("plan", "wire", "copy", "forward", "sample", "commit")
STEP_BUCKETS = (
    *(0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5),
    *(0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)
"""Upper bounds in seconds; what is above the last has a bucket of its own."""


@dataclass(frozen=True, slots=True)
class PartTimes:
    """One part of all steps: how many took up to each bound of `STEP_BUCKETS`, and their sum.

    `counts` has one entry more than there are bounds; each step is in one of them.
    """

    part: str
    counts: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """All parts, in the order of `STEP_PARTS`, and how often the group was formed anew."""

    parts: tuple[PartTimes, ...] = ()
    reforms: int = 0


NO_STEPS = StepTimes()
"""Nobody has measured any."""


class _Part:
    def __init__(self) -> None:
        self.counts = [0] * (len(STEP_BUCKETS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        # Two clocks are compared, the worker's and ours: a little less than nothing is nothing.
        if seconds < 0.0:
            seconds = 0.0
        self.counts[bisect_left(STEP_BUCKETS, seconds)] += 1
        self.seconds += seconds


class StepMeter:
    """Counts of one engine. Steps end in the order in which they were sent."""

    def __init__(self) -> None:
        self._parts = tuple(_Part() for _ in STEP_PARTS)
        self._sent: deque[float] = deque()
        self._arrived = 0.0
        self._reforms = 0

    def sent(self, began: float, now: float) -> None:
        """A plan that was begun at `began` is on its way."""
        self._parts[0].add(now - began)
        self._sent.append(now)

    def ended(self, result: StepResult, arrived: float, now: float) -> None:
        """The oldest step's result came at `arrived`, and is booked and told."""
        wire, copy, forward, sample, commit = self._parts[1:]
        since = max(self._sent.popleft(), self._arrived)
        self._arrived = arrived
        # Copies beside the step are none of its time.
        wire.add(max(0.0, arrived - since - result.compute_seconds - result.copy_seconds))
        copy.add(result.copy_seconds)
        forward.add(result.compute_seconds - result.sample_seconds)
        sample.add(result.sample_seconds)
        commit.add(now - arrived)

    def reformed(self) -> None:
        """The group was formed anew; what was under way never ends."""
        self._sent.clear()
        self._reforms += 1

    def report(self) -> StepTimes:
        """What was counted so far."""
        parts = zip(STEP_PARTS, self._parts, strict=True)
        return StepTimes(
            tuple(PartTimes(name, tuple(part.counts), part.seconds) for name, part in parts),
            self._reforms,
        )
