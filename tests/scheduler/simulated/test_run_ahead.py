"""Steps done at once against the same steps one by one: two schedulers must stay twins."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler

SECONDS = 0.01


def answer(request_id: str) -> int:
    return 1000 + int(request_id)


def finish(scheduler: Scheduler, plan: StepPlan, names: dict[int, int]) -> None:
    for admission in plan.admitted:
        names[admission.handle] = admission.sampling.seed
    rows = zip(plan.handles, plan.samples, strict=True)
    tokens = tuple(answer(str(names[handle])) for handle, samples in rows if samples)
    scheduler.commit(StepResult(plan.step, tokens, (), SECONDS), 0.0)
    scheduler.acknowledge(plan.step)


def make(num_blocks: int = 40) -> Scheduler:
    config = SchedulerConfig(
        max_context_tokens=200, block_size=4, max_running=8, max_step_tokens=16
    )
    return Scheduler(config, num_blocks)


def submit(scheduler: Scheduler, number: int, prompt: tuple[int, ...], output: int) -> None:
    sampling = SamplingParams(max_tokens=output, seed=number)
    scheduler.submit(RequestSpec(str(number), prompt, sampling), 0.0)


@pytest.mark.parametrize("seed", range(8))
def test_twins_stay_twins(seed: int) -> None:
    rng = random.Random(seed)
    ahead, single = make(), make()
    ahead_names: dict[int, int] = {}
    single_names: dict[int, int] = {}
    number = done_at_once = 0
    for _ in range(400):
        if number < 60 and rng.random() < 0.15:
            prompt = (rng.randrange(3),) * rng.randrange(1, 30)
            output = rng.randrange(1, 40)
            for scheduler in (ahead, single):
                submit(scheduler, number, prompt, output)
            number += 1
        steady = ahead.steady_steps()
        assert steady == single.steady_steps()
        if steady:
            count = rng.randint(1, steady)
            ahead.run_ahead([SECONDS] * count, answer)
            for _ in range(count):
                plan = single.plan(0.0)
                assert plan is not None and set(plan.counts) == {1}
                finish(single, plan, single_names)
            done_at_once += count
        else:
            plans = ahead.plan(0.0), single.plan(0.0)
            if plans[0] is None or plans[1] is None:
                assert plans == (None, None)
                continue
            # What leaves is told with the next plan, which for the one came within the steps.
            assert replace(plans[0], forgotten=(), replacements=()) == replace(
                plans[1], forgotten=(), replacements=()
            )
            finish(ahead, plans[0], ahead_names)
            finish(single, plans[1], single_names)
        ahead.check()
        assert ahead.ledger() == single.ledger()
    assert done_at_once > 100
    assert number > 20


def running(num_blocks: int = 40, **options: int) -> Scheduler:
    scheduler = make(num_blocks)
    submit(scheduler, 0, (7,) * 6, options.get("output", 30))
    names: dict[int, int] = {}
    plan = scheduler.plan(0.0)
    assert plan is not None
    finish(scheduler, plan, names)
    return scheduler


def test_steady_steps_end_where_a_block_is_full() -> None:
    scheduler = running()
    # Six of eight slots are filled; the steps after these two need a block, and fill it.
    assert scheduler.steady_steps() == 2
    scheduler.run_ahead([SECONDS] * 2, answer)
    assert scheduler.ledger().blocks.active == 2
    assert scheduler.steady_steps() == 4
    scheduler.run_ahead([SECONDS], answer)
    assert scheduler.ledger().blocks.active == 3
    assert scheduler.steady_steps() == 3


def test_the_step_that_ends_a_request_is_not_steady() -> None:
    assert running(output=2).steady_steps() == 0
    assert running(output=3).steady_steps() == 1


def _waits(scheduler: Scheduler) -> None:
    submit(scheduler, 1, (5,), 3)


def _is_in_flight(scheduler: Scheduler) -> None:
    scheduler.plan(0.0)


def _may_stop(scheduler: Scheduler) -> None:
    scheduler.abort("0")
    sampling = SamplingParams(max_tokens=30, seed=2, stop_token_ids=(1,))
    scheduler.submit(RequestSpec("2", (3,), sampling), 0.0)
    plan = scheduler.plan(0.0)
    assert plan is not None
    finish(scheduler, plan, {})


@pytest.mark.parametrize("change", [_waits, _is_in_flight, _may_stop])
def test_nothing_is_steady_while_more_than_decodes_can_happen(
    change: Callable[[Scheduler], None],
) -> None:
    scheduler = running()
    assert scheduler.steady_steps() > 0
    change(scheduler)
    assert scheduler.steady_steps() == 0


def test_nothing_is_steady_without_a_block_to_take() -> None:
    scheduler = make(num_blocks=5)
    names: dict[int, int] = {}
    for number in range(2):
        submit(scheduler, number, (number,) * 7, 9)
    for _ in range(2):
        plan = scheduler.plan(0.0)
        assert plan is not None
        finish(scheduler, plan, names)
    assert scheduler.ledger().requests.running == 2
    # Both need a block now, and one is there.
    assert scheduler.ledger().blocks.free == 1
    assert scheduler.steady_steps() == 0
