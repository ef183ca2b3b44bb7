"""A witness at the pace of a model computes at the end of its steps, which take as long as said."""

from typing import Any

import pytest

from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.workers import paced_witness
from blockyard.workers.config import WorkerConfig
from blockyard.workers.fake import WitnessWorker
from blockyard.workers.paced_witness import PacedWitness


class Clock:
    """Time that passes when somebody sleeps or computes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.computed: list[tuple[float, float]] = []

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0.0
        self.now += seconds


@pytest.mark.parametrize("step_seconds", [0.0, 0.5, 2.0])
def test_it_waits_before_it_computes(step_seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, takes = Clock(), iter([0.25, 0.25, 0.125, 0.375, 4.0, 0.25])

    def compute(worker: WitnessWorker, plan: StepPlan) -> StepResult:
        began = clock.now
        clock.now += next(takes)
        clock.computed.append((began, clock.now))
        return StepResult(plan.step, ())

    monkeypatch.setattr(paced_witness, "time", clock)
    monkeypatch.setattr(WitnessWorker, "execute", compute)
    worker = PacedWitness(WorkerConfig("", 64), 97, step_seconds)
    plan: Any = StepPlan(1, (), (), (), (), (), (), (), ())
    last = 0.0
    for _ in range(6):
        begin = clock.now
        result = worker.execute(plan)
        began, ended = clock.computed[-1]
        assert began - begin == max(0.0, step_seconds - last), "as it took last time"
        assert clock.now == max(ended, begin + step_seconds)
        assert result.compute_seconds == clock.now - begin
        last = ended - began
