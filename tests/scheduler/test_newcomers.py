"""Who starts without a look around starts as the long way has it."""

import random
from typing import Any

import pytest

from blockyard.scheduler import packing
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.newcomers import find_room
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler


def play(seed: int, steps: int = 80) -> tuple[list[StepPlan | None], list[Any]]:
    """Plans and news of a random history: prompts that begin alike, a pool that is short."""
    draw = random.Random(seed)
    limits = SchedulerConfig(
        max_context_tokens=256,
        max_running=8,
        max_step_tokens=draw.choice((32, 64, 200)),
        max_waiting=32,
        block_size=4,
        pipeline_depth=draw.choice((1, 2)),
    )
    scheduler = Scheduler(limits, draw.choice((60, 400)))
    plans: list[StepPlan | None] = []
    news: list[Any] = []
    in_flight: list[StepPlan] = []
    for step in range(steps):
        for number in range(draw.choice((0, 0, 1, 1, 3))):
            prompt = (draw.randrange(3),) * draw.randrange(12) + (step,) * draw.randrange(1, 20)
            spec = RequestSpec(
                f"{step}.{number}",
                prompt,
                SamplingParams(draw.randrange(1, 24)),
                priority=draw.choice((0, 0, 0, 1)),
                tenant=draw.choice("ab"),
                use_prefix_cache=draw.random() < 0.9,
                num_choices=draw.choice((1, 1, 1, 3)),
            )
            if scheduler.num_requests < 20:
                scheduler.submit(spec, float(step))
        if draw.random() < 0.1 and plans:
            scheduler.abort(f"{draw.randrange(step)}.0")
        while scheduler.may_plan:
            plan = scheduler.plan(float(step))
            scheduler.check()
            plans.append(plan)
            if plan is None:
                break
            in_flight.append(plan)
        if in_flight:
            plan = in_flight.pop(0)
            tokens = tuple(draw.randrange(50) for _ in range(plan.num_samples))
            news += scheduler.commit(StepResult(plan.step, tokens), float(step))
            scheduler.acknowledge(plan.step)
            scheduler.check()
    return plans, news


def test_the_short_way_in_and_the_long_one_make_the_same_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = 0

    def counted(*arguments: Any) -> tuple[int, ...] | None:
        nonlocal taken
        block_ids = find_room(*arguments)
        taken += block_ids is not None
        return block_ids

    for seed in range(24):
        monkeypatch.setattr(packing, "find_room", counted)
        short = play(seed)
        monkeypatch.setattr(packing, "find_room", lambda *_: None)
        assert play(seed) == short
    assert taken > 24
