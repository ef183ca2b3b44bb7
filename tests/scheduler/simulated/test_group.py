"""A group whose steady steps lie ahead, against one that does them singly: nobody can tell."""

import random

import pytest

from blockyard.scheduler.capacity.kv_math import ModelShape
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.contiguous.allocators import make_allocator
from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.simulated.arrivals import Arrival, PromptWriter
from blockyard.scheduler.simulated.contiguous_group import ContiguousGroup
from blockyard.scheduler.simulated.group import SimulatedGroup
from blockyard.scheduler.simulated.paged_group import PagedGroup
from blockyard.scheduler.simulated.records import ReplayRecords
from blockyard.scheduler.simulated.roofline import H200
from blockyard.scheduler.simulated.step_cost import make_step_cost

CONFIG = SchedulerConfig(max_context_tokens=512, max_running=8, max_step_tokens=64)
COST = make_step_cost(ModelShape(32, 8, 128, 8_000_000_000), H200, 16, 1)


def make(kind: str) -> SimulatedGroup:
    records = ReplayRecords()
    if kind == "blocks":
        return PagedGroup("g0", records, Scheduler(CONFIG, 200), COST, PromptWriter())
    return ContiguousGroup("g0", records, make_allocator(kind, 200 * 16, 512), CONFIG, COST)


class Clock:
    """Drives one group from one moment to the next."""

    def __init__(self, group: SimulatedGroup, ahead: bool) -> None:
        self.group = group
        self.ahead = ahead
        self.end: float | None = None

    def reach(self, now: float) -> None:
        while self.end is not None and self.end <= now:
            at = self.end
            self.group.finish(at)
            self.end = self.group.begin(at, ahead=self.ahead)

    def submit(self, arrival: Arrival) -> None:
        now = arrival.seconds
        self.reach(now)
        if self.end is None:
            self.group.submit(arrival, now)
            self.end = self.group.begin(now, ahead=False)
            return
        sooner = self.group.cut(now)
        self.end = self.end if sooner is None else sooner
        self.group.submit(arrival, now)

    def books(self, now: float) -> GroupLedger:
        self.reach(now)
        return self.group.candidate(now).ledger


@pytest.mark.parametrize("kind", ["blocks", "max_seq_len", "pow2", "exact"])
@pytest.mark.parametrize("seed", range(4))
def test_books_in_the_middle_of_a_stretch_are_those_of_single_steps(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    clocks = [Clock(make(kind), ahead) for ahead in (True, False)]
    now = 0.0
    stretches = 0
    for number in range(120):
        now += rng.expovariate(6.0)
        prefix = (rng.randrange(3),) if rng.random() < 0.5 else ()
        arrival = Arrival(number, now, rng.randrange(1, 200), rng.randrange(1, 120), prefix)
        for clock in clocks:
            clock.submit(arrival)
        for _ in range(3):
            now += rng.expovariate(30.0)
            ahead, single = (clock.books(now) for clock in clocks)
            assert ahead == single
            stretches += clocks[0].end != clocks[1].end
    assert stretches > 50


def test_a_stretch_that_is_cut_ends_with_the_step_in_flight() -> None:
    group = make("blocks")
    group.submit(Arrival(0, 0.0, 40, 60), 0.0)
    first = group.begin(0.0, ahead=True)
    assert first is not None
    group.finish(first)
    end = group.begin(first, ahead=True)
    assert end is not None
    # All but the first token and the step that ends it.
    step = (end - first) / 58
    sooner = group.cut(first + 10.5 * step)
    assert sooner is not None and sooner == pytest.approx(first + 11 * step, rel=1e-3)
    assert group.cut(first + 10.6 * step) is None
    assert group.ledger().step == 1
    assert group.candidate(first + 10.6 * step).ledger.step == 12
    group.finish(sooner)
    assert group.ledger().step == 12
    assert group.begin(sooner, ahead=True) == pytest.approx(end, rel=1e-12)


def test_what_steps_ahead_take_is_found_no_more_once_they_are_settled() -> None:
    asked = Arrival(9, 0.0, 320, 1, (1,))
    seen = []
    for ahead in (True, False):
        group = PagedGroup("g0", ReplayRecords(), Scheduler(CONFIG, 40), COST, PromptWriter())
        clock = Clock(group, ahead)
        clock.submit(Arrival(0, 0.0, 320, 1, (1,)))
        clock.reach(1e9)
        assert (group.num_requests, group.known_blocks(asked)) == (0, 20)
        # 40 blocks: 20 are kept, and this one takes 25 by and by, the kept ones last.
        began = 2e9
        clock.submit(Arrival(1, began, 30, 370))
        one_step = COST.decode_seconds(1, 200)
        for steps in (100, 300, 340):
            now = began + steps * one_step
            clock.reach(now)
            if group.forgets_by(now):
                assert ahead
                clock.end = group.settle(now)
            seen.append((group.known_blocks(asked), clock.end))
    assert seen[0][0] == 20 > seen[1][0] > seen[2][0] > 0
    for left, right in zip(seen[:3], seen[3:], strict=True):
        assert left[0] == right[0]
    # Where nothing was forgotten the steps ahead were left alone.
    assert seen[0][1] != seen[3][1]
    assert seen[1][1] == pytest.approx(seen[4][1])
