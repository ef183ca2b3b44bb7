"""Where steps' seconds go, when they run one by one and when two are under way."""

import pytest

from blockyard.cluster.books.step_meter import STEP_BUCKETS, STEP_PARTS, StepMeter
from blockyard.scheduler.plan import StepResult


def seconds(meter: StepMeter) -> dict[str, float]:
    return {part.part: part.seconds for part in meter.report().parts}


def result(step: int, compute: float, copy: float = 0.0, sample: float = 0.0) -> StepResult:
    return StepResult(step, (), compute_seconds=compute, copy_seconds=copy, sample_seconds=sample)


def test_a_step_that_waits_behind_another_is_not_counted_for_the_wait() -> None:
    meter = StepMeter()
    meter.sent(0.0, 1.0)
    meter.sent(2.0, 3.0)  # planned while the first one runs
    meter.ended(result(1, compute=8.0), 10.0, 10.5)
    assert seconds(meter)["wire"] == 1.0
    meter.ended(result(2, compute=8.0), 19.0, 19.5)
    assert seconds(meter)["wire"] == 2.0  # 9 seconds after the first result, 8 of them computed
    assert seconds(meter) == {
        "plan": 2.0,
        "wire": 2.0,
        "copy": 0.0,
        "forward": 16.0,
        "sample": 0.0,
        "commit": 1.0,
    }


def test_a_step_after_an_idle_time_is_not_counted_for_it() -> None:
    meter = StepMeter()
    for began in (0.0, 100.0):
        meter.sent(began, began)
        meter.ended(result(1, compute=1.0, copy=0.5, sample=0.25), began + 2.0, began + 2.0)
    assert seconds(meter)["wire"] == 1.0
    assert seconds(meter)["forward"] == 1.5
    assert seconds(meter)["copy"] == 1.0
    assert seconds(meter)["sample"] == 0.5


def test_a_worker_whose_clock_runs_fast_takes_no_time_back() -> None:
    meter = StepMeter()
    meter.sent(0.0, 0.0)
    meter.ended(result(1, compute=1.5), 1.0, 1.0)
    assert seconds(meter)["wire"] == 0.0


@pytest.mark.parametrize(
    ("taken", "bucket"),
    [(0.0, 0), (STEP_BUCKETS[0], 0), (0.003, STEP_BUCKETS.index(0.005)), (9.0, len(STEP_BUCKETS))],
)
def test_each_step_is_in_one_bucket(taken: float, bucket: int) -> None:
    meter = StepMeter()
    meter.sent(0.0, taken)
    meter.ended(result(1, compute=0.0), taken, taken)
    [plan] = [part for part in meter.report().parts if part.part == "plan"]
    assert [index for index, count in enumerate(plan.counts) if count] == [bucket]
    assert {sum(part.counts) for part in meter.report().parts} == {1}
    assert tuple(part.part for part in meter.report().parts) == STEP_PARTS


def test_steps_of_a_lost_group_never_end() -> None:
    meter = StepMeter()
    meter.sent(0.0, 1.0)
    meter.reformed()
    meter.sent(50.0, 51.0)
    meter.ended(result(1, compute=1.0), 53.0, 53.0)
    assert seconds(meter)["wire"] == 1.0
    assert meter.report().reforms == 1
