"""When the next plan is due, by a clock that the test drives."""

import math
import random

import pytest

from blockyard.cluster.step_pace import StepPace
from blockyard.scheduler.plan import StepPlan, StepResult

PLANNING, WAY = 0.001, 0.004


class Drive:
    """A worker that takes what it is told to, a way there and back, and an engine in time.

    Steps are sent when they are due, or when the step before has ended.
    """

    def __init__(self) -> None:
        self.pace = StepPace()
        self.now = 50.0
        self.ends: list[float] = []  # of steps under way, when their results are here
        self.early: list[float] = []  # how long before the end of its predecessor each was sent
        self.idle = 0.0  # of the worker, between steps
        self._takes: list[float] = []
        self._step = 0
        self._free = 0.0  # when the worker has done all that it was sent

    def send(self, seconds: float, rows: int = 8, tokens: int = 8) -> None:
        began, self.now = self.now, self.now + PLANNING
        self._step += 1
        begin = self.now + WAY / 2
        if self.ends:
            self.early.append(self.ends[-1] - self.now)
        self.idle += max(0.0, begin - self._free) if self._free else 0.0
        self._free = max(begin, self._free) + seconds
        self.ends.append(self._free + WAY / 2)
        self._takes.append(seconds)
        self.pace.sent(plan_of(self._step, rows, tokens), began, self.now)

    def end(self) -> None:
        self.now = max(self.now, self.ends.pop(0))
        done = StepResult(self._step - len(self.ends), (), compute_seconds=self._takes.pop(0))
        self.pace.ended(done, self.now)

    def steps(self, count: int, seconds: float, rows: int = 8, tokens: int = 8) -> None:
        """So many more, each as soon as it is due."""
        for _ in range(count):
            if not self.ends:
                self.send(seconds, rows, tokens)
            due = self.now + self.pace.wait_seconds(self.now)
            if due < self.ends[0]:
                if due > self.now:
                    self.now = due
                    self.pace.rang(due)
                self.send(seconds, rows, tokens)
            self.end()


def plan_of(step: int, rows: int, tokens: int) -> StepPlan:
    counts = (1,) * (rows - 1) + (tokens - rows + 1,)
    return StepPlan(
        step, (), (), (), tuple(range(rows)), (0,) * rows, counts, (True,) * rows, (5,) * tokens
    )


@pytest.fixture
def drive() -> Drive:
    return Drive()


def test_with_nothing_under_way_a_plan_is_due_at_once(drive: Drive) -> None:
    assert drive.pace.wait_seconds(drive.now) == 0.0
    drive.steps(40, 0.1)
    while drive.ends:
        drive.end()
    assert drive.pace.wait_seconds(drive.now) == 0.0


def test_behind_a_step_of_which_nothing_is_known_a_plan_is_due_at_once(drive: Drive) -> None:
    drive.send(0.1)
    assert drive.pace.wait_seconds(drive.now) == 0.0
    drive.end()
    drive.send(0.1)
    assert drive.pace.wait_seconds(drive.now) > 0.0
    drive.end()
    drive.send(0.1, rows=100, tokens=100)
    assert drive.pace.wait_seconds(drive.now) == 0.0


@pytest.mark.parametrize("seconds", [0.02, 0.1, 3.0])
def test_once_learned_the_next_plan_arrives_just_before_the_step_ends(
    drive: Drive, seconds: float
) -> None:
    drive.steps(80, seconds)
    drive.early.clear()
    idle = drive.idle
    drive.steps(40, seconds)
    assert all(WAY <= early < WAY + 0.01 * seconds for early in drive.early)
    assert drive.idle - idle <= PLANNING + WAY + 1e-9, "at most for one that was sent alone"


def test_steps_that_differ_are_met_in_time_as_a_rule(drive: Drive) -> None:
    draw = random.Random(3)
    lengths = [0.1 * draw.gauss(1.0, 0.05) for _ in range(600)]
    for seconds in lengths:
        drive.steps(1, seconds)
    assert drive.idle / sum(lengths) < 0.005
    early = sorted(drive.early[100:])
    assert WAY < early[len(early) // 2] < WAY + 0.02, "a newcomer misses a fifth of a step at most"


def test_a_longer_kind_of_step_has_a_length_of_its_own(drive: Drive) -> None:
    for _ in range(30):
        drive.steps(3, 0.02)
        drive.steps(1, 0.3, rows=9, tokens=500)
        while drive.ends:
            drive.end()
    drive.send(0.02)
    assert drive.pace.wait_seconds(drive.now) < 0.02
    drive.end()
    drive.send(0.3, rows=9, tokens=500)
    assert 0.25 < drive.pace.wait_seconds(drive.now) < 0.3


def test_suddenly_longer_steps_are_planned_too_early_until_that_is_learned(drive: Drive) -> None:
    drive.steps(80, 0.05)
    drive.early.clear()
    drive.steps(4, 0.1)
    assert max(drive.early) > 0.05 and drive.idle < 0.1
    drive.steps(60, 0.1)
    drive.early.clear()
    drive.steps(20, 0.1)
    assert max(drive.early) < 0.01


def test_suddenly_shorter_steps_end_first_and_cost_what_one_at_a_time_costs(drive: Drive) -> None:
    drive.steps(80, 0.1)
    idle = drive.idle
    drive.steps(60, 0.05)
    assert drive.idle - idle < 20 * (PLANNING + WAY)
    idle = drive.idle
    drive.early.clear()
    drive.steps(40, 0.05)
    assert drive.idle - idle <= PLANNING + WAY + 1e-9
    assert max(drive.early) < 0.01


@pytest.mark.parametrize("usual, wild", [(0.05, 10.0), (0.05, 1.0), (0.05, 0.21)])
def test_one_hiccup_is_soon_forgotten(drive: Drive, usual: float, wild: float) -> None:
    drive.steps(80, usual)
    drive.steps(1, wild)
    drive.steps(14, usual)
    drive.early.clear()
    drive.steps(10, usual)
    assert drive.early and max(drive.early) < 0.02


def test_a_first_step_that_compiled_something_is_not_what_others_take(drive: Drive) -> None:
    drive.steps(1, 5.0)
    drive.steps(2, 0.05)
    drive.early.clear()
    drive.steps(3, 0.05)
    assert drive.early and max(drive.early) < 0.02


@pytest.mark.parametrize("steps_before", [0, 1, 80])
@pytest.mark.parametrize("seconds", [0.1, 2.0])
def test_one_long_way_is_soon_forgotten(drive: Drive, steps_before: int, seconds: float) -> None:
    drive.steps(steps_before, 0.02)
    while drive.ends:
        drive.end()
    drive.send(0.02)
    drive.ends[0] += seconds  # the event loop, or the worker, had something else to do
    drive.end()
    drive.steps(100, 0.02)
    drive.early.clear()
    drive.steps(40, 0.02)
    assert max(drive.early) < 0.015, "a step is 0.02 s long"


@pytest.mark.parametrize("steps_before", [4, 80])
@pytest.mark.parametrize("times", [1, 6])
def test_a_timer_that_rang_very_late_is_soon_tried_again(
    drive: Drive, steps_before: int, times: int
) -> None:
    drive.steps(steps_before, 0.02)
    rung = 0
    for _ in range(300):
        if not drive.ends:
            drive.send(0.02)
        wait = drive.pace.wait_seconds(drive.now)
        if 0.0 < wait < math.inf and rung < times:
            drive.now += wait + 1.0
            drive.pace.rang(drive.now)
            drive.send(0.02)
            rung += 1
        drive.end()
    assert rung == times
    drive.steps(60, 0.02)
    drive.early.clear()
    drive.steps(40, 0.02)
    assert max(drive.early) < 0.015, "a step is 0.02 s long"


def test_now_and_then_a_step_is_sent_alone_to_learn_the_way(drive: Drive) -> None:
    drive.steps(64, 0.1)
    assert 4 <= 64 - len(drive.early) <= 6, "more often at first"
    drive.steps(336, 0.1)
    drive.early.clear()
    drive.steps(640, 0.1)
    assert 9 <= 640 - len(drive.early) <= 11


def test_steps_shorter_than_the_way_are_sent_as_early_as_may_be(drive: Drive) -> None:
    drive.steps(100, 0.003)
    drive.early.clear()
    waits = set()
    for _ in range(64):
        waits.add(drive.pace.wait_seconds(drive.now))
        drive.steps(1, 0.003)
    assert waits <= {0.0, math.inf} and len(drive.early) >= 63


def test_for_a_wait_that_timers_cannot_keep_none_is_set(drive: Drive) -> None:
    drive.steps(80, 0.1)
    due = drive.now + drive.pace.wait_seconds(drive.now)
    assert drive.pace.wait_seconds(due - 0.0011) == pytest.approx(0.0011)
    assert drive.pace.wait_seconds(due - 0.0009) == 0.0
    assert drive.pace.wait_seconds(due - 0.01) == 0.0, "once due it stays so"


def test_a_timer_that_rings_late_is_asked_to_ring_earlier(drive: Drive) -> None:
    drive.steps(80, 0.1)
    asked = drive.pace.wait_seconds(drive.now)
    for _ in range(40):
        due = drive.now + drive.pace.wait_seconds(drive.now)
        if due < drive.ends[0]:
            drive.now = due + 0.002
            drive.pace.rang(drive.now)
            drive.send(0.1)
        drive.end()
        if not drive.ends:
            drive.send(0.1)
    assert asked - drive.pace.wait_seconds(drive.now) == pytest.approx(0.002, abs=5e-4)


def test_a_timer_that_rings_late_now_and_then_is_allowed_for(drive: Drive) -> None:
    drive.steps(80, 0.1)
    late, early = 0.0, []
    for _ in range(60):
        due = drive.now + drive.pace.wait_seconds(drive.now)
        if due < drive.ends[0]:
            late = 0.004 - late
            drive.now = due + late
            drive.pace.rang(drive.now)
            drive.send(0.1)
            early.append(drive.early[-1])
        drive.end()
        if not drive.ends:
            drive.send(0.1)
    assert min(early[20:]) >= WAY and max(early[20:]) < WAY + 0.008


def test_after_it_rang_a_plan_stays_due_whatever_the_clock_says(drive: Drive) -> None:
    drive.steps(80, 0.1)
    wait = drive.pace.wait_seconds(drive.now)
    assert wait > 0.05
    drive.pace.rang(drive.now)
    assert drive.pace.wait_seconds(drive.now) == 0.0
    drive.end()
    drive.send(0.1)
    assert drive.pace.wait_seconds(drive.now) > 0.05


def test_a_group_that_tells_no_times_is_planned_for_at_once() -> None:
    pace, now = StepPace(), 7.0
    for step in range(1, 30):
        pace.sent(plan_of(step, 4, 4), now, now)
        assert pace.wait_seconds(now + 0.01) in (0.0, math.inf)
        now += 0.1
        pace.ended(StepResult(step, ()), now)


def test_what_is_abandoned_never_ends_and_what_was_learned_stays(drive: Drive) -> None:
    drive.steps(80, 0.1)
    drive.pace.abandoned()
    assert drive.pace.wait_seconds(drive.now) == 0.0
    drive.ends.clear()
    drive._takes.clear()
    drive.send(0.1)
    assert 0.05 < drive.pace.wait_seconds(drive.now) < math.inf
