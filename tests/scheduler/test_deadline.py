import pytest

from blockyard.scheduler.block_table import BlockTable
from blockyard.scheduler.cost_model import CostModel
from blockyard.scheduler.deadline import DeadlineMiss, DeadlineWatch, judge_deadline
from blockyard.scheduler.request import Request, RequestSpec, RequestState
from blockyard.scheduler.sampling import SamplingParams

RATES = CostModel(1, prefill_tokens_per_second=1000.0, link_bytes_per_second=1.0, step_seconds=0.1)
UNMEASURED = CostModel(1, 0.0, 0.0)


def request(
    sequence: int, prompt: int, deadline: float | None, arrived: float = 0.0, fewest: int = 0
) -> Request:
    return Request(
        spec=RequestSpec(
            f"r{sequence}",
            (1,) * prompt,
            SamplingParams(min_tokens=fewest),
            deadline_seconds=deadline,
        ),
        sequence=sequence,
        max_tokens=9,
        table=BlockTable(4),
        arrived_at=arrived,
        tokens=[1] * prompt,
    )


def dropped(
    watch: DeadlineWatch, now: float, rates: CostModel = RATES
) -> list[tuple[str, DeadlineMiss]]:
    found = watch.missed(now, rates, lambda request: len(request.tokens))
    return [(request.request_id, verdict.miss) for request, verdict in found]


def test_what_can_still_be_met_is_not_judged() -> None:
    assert judge_deadline(5.0, 1000, 1, 3000, RATES) is None


def test_each_way_to_miss_has_its_name_and_its_numbers() -> None:
    passed = judge_deadline(0.0, 1, 1, 0, UNMEASURED)
    assert passed is not None and passed.miss is DeadlineMiss.PASSED
    work = judge_deadline(1.0, 1000, 11, 0, RATES)
    assert work is not None and work.miss is DeadlineMiss.WORK
    assert work.needed_seconds == pytest.approx(2.0)
    queue = judge_deadline(2.5, 1000, 11, 3000, RATES)
    assert queue is not None and queue.miss is DeadlineMiss.QUEUE
    assert queue.needed_seconds == pytest.approx(5.0)
    assert "2.5 s away" in queue.message and "5 s" in queue.message


def test_an_estimate_a_little_too_long_drops_nobody() -> None:
    assert judge_deadline(1.0, 1400, 1, 0, RATES) is None
    assert judge_deadline(1.0, 1000, 1, 400, RATES) is None


def test_without_rates_only_a_deadline_that_has_passed_is_missed() -> None:
    assert judge_deadline(0.001, 10**6, 100, 10**6, UNMEASURED) is None


def test_the_watch_drops_at_the_moment_it_becomes_hopeless() -> None:
    watch = DeadlineWatch()
    watch.add(request(0, prompt=2000, deadline=10.0), RATES)
    watch.add(request(1, prompt=10, deadline=10.0), RATES)
    watch.add(request(2, prompt=10, deadline=None), RATES)
    assert len(watch) == 2
    assert dropped(watch, 8.5) == []
    assert dropped(watch, 8.7) == [("r0", DeadlineMiss.WORK)]
    assert dropped(watch, 9.9) == []
    assert dropped(watch, 10.0) == [("r1", DeadlineMiss.PASSED)]
    assert len(watch) == 0


def test_a_deadline_counts_from_the_arrival() -> None:
    watch = DeadlineWatch()
    watch.add(request(0, prompt=10, deadline=1.0, arrived=100.0), RATES)
    assert dropped(watch, 100.9) == []
    assert dropped(watch, 101.0) == [("r0", DeadlineMiss.PASSED)]


def test_who_has_started_goes_on() -> None:
    watch = DeadlineWatch()
    running, parked, waiting = (request(i, prompt=10, deadline=1.0) for i in range(3))
    for item in (running, parked, waiting):
        watch.add(item, RATES)
    running.state, parked.state = RequestState.RUNNING, RequestState.PARKED
    assert dropped(watch, 5.0) == [("r2", DeadlineMiss.PASSED)]


def test_better_rates_give_more_time_and_prefix_hits_too() -> None:
    watch = DeadlineWatch()
    item = request(0, prompt=9000, deadline=10.0)
    watch.add(item, RATES)
    fast = CostModel(1, 10_000.0, 1.0, 0.1)
    assert dropped(watch, 5.0, fast) == []
    assert watch.missed(9.0, RATES, lambda _: 100) == []
    assert dropped(watch, 9.5, fast) == [("r0", DeadlineMiss.WORK)]


def test_rates_that_come_later_are_used() -> None:
    watch = DeadlineWatch()
    watch.add(request(0, prompt=10, deadline=1.0), UNMEASURED)
    assert dropped(watch, 0.5, UNMEASURED) == []
    assert dropped(watch, 1.5, RATES) == [("r0", DeadlineMiss.PASSED)]
