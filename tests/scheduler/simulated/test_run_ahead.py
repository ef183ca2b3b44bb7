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


def make(num_blocks: int = 40, max_running: int = 8) -> Scheduler:
    config = SchedulerConfig(
        max_context_tokens=200, block_size=4, max_running=max_running, max_step_tokens=16
    )
    return Scheduler(config, num_blocks)


def submit(scheduler: Scheduler, number: int, prompt: tuple[int, ...], output: int) -> None:
    sampling = SamplingParams(max_tokens=output, seed=number)
    scheduler.submit(RequestSpec(str(number), prompt, sampling), 0.0)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("max_running", [8, 2])
def test_twins_stay_twins(seed: int, max_running: int) -> None:
    rng = random.Random(seed)
    ahead, single = make(max_running=max_running), make(max_running=max_running)
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
        taken = ahead.steady_steps(50)
        assert taken == single.steady_steps(50)
        if len(taken) > 1:
            count = rng.randint(1, len(taken) - 1)
            active = single.ledger().blocks.active
            ahead.run_ahead([SECONDS] * count, answer)
            for step in range(count):
                plan = single.plan(0.0)
                assert plan is not None and set(plan.counts) == {1}
                assert single.ledger().blocks.active == active + taken[step + 1]
                finish(single, plan, single_names)
            done_at_once += count
        else:
            plans = ahead.plan(0.0), single.plan(0.0)
            if plans[0] is None or plans[1] is None:
                assert plans == (None, None)
                continue
            assert comparable(plans[0]) == comparable(plans[1])
            finish(ahead, plans[0], ahead_names)
            finish(single, plans[1], single_names)
        ahead.check()
        assert ahead.ledger() == single.ledger()
    assert done_at_once > 100
    assert number > 20


def comparable(plan: StepPlan) -> object:
    """A plan without what may differ: which of the free blocks are taken, and what has left since.

    What leaves is told with the next plan, which for the one came within the steps.
    """
    grants = [(grant.handle, len(grant.block_ids)) for grant in plan.grants]
    return grants, replace(plan, grants=(), forgotten=(), replacements=())


def running(num_blocks: int = 40, **options: int) -> Scheduler:
    scheduler = make(num_blocks, options.get("max_running", 8))
    submit(scheduler, 0, (7,) * 6, options.get("output", 30))
    names: dict[int, int] = {}
    plan = scheduler.plan(0.0)
    assert plan is not None
    finish(scheduler, plan, names)
    return scheduler


def test_steady_steps_take_blocks_where_tables_are_full() -> None:
    scheduler = running()
    # Six of eight slots are filled, so the third step needs a block, and every fourth after it.
    assert scheduler.steady_steps(9) == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    scheduler.run_ahead([SECONDS] * 7, answer)
    assert scheduler.ledger().blocks.active == 4
    assert scheduler.steady_steps(4) == [0, 0, 0, 0, 1]


def test_the_step_that_ends_a_request_is_not_steady() -> None:
    assert running(output=2).steady_steps(9) == [0]
    assert running(output=3).steady_steps(9) == [0, 0]


def test_who_waits_without_a_place_to_come_leaves_steps_steady() -> None:
    scheduler = running(max_running=1)
    submit(scheduler, 1, (5,), 3)
    assert len(scheduler.steady_steps(9)) == 10
    # Somebody more urgent takes the place away.
    sampling = SamplingParams(max_tokens=3, seed=2)
    scheduler.submit(RequestSpec("2", (5,), sampling, priority=1), 0.0)
    assert scheduler.steady_steps(9) == [0]


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
    assert len(scheduler.steady_steps(9)) == 10
    change(scheduler)
    assert scheduler.steady_steps(9) == [0]


def test_nothing_is_steady_without_a_block_to_take() -> None:
    scheduler = make(num_blocks=5)
    names: dict[int, int] = {}
    for number in range(2):
        submit(scheduler, number, (number,) * 6, 9)
    for _ in range(2):
        plan = scheduler.plan(0.0)
        assert plan is not None
        finish(scheduler, plan, names)
    assert scheduler.ledger().requests.running == 2
    # Both will need a block at the same step, and one is there.
    assert scheduler.ledger().blocks.free == 1
    assert scheduler.steady_steps(9) == [0, 0]


def test_equal_answers_are_found_out() -> None:
    scheduler = make()
    for number in range(2):
        submit(scheduler, number, (7,) * 3, 20)
    for _ in range(3):
        plan = scheduler.plan(0.0)
        assert plan is not None
        scheduler.commit(StepResult(plan.step, (answer("0"),) * plan.num_samples), 0.0)
        scheduler.acknowledge(plan.step)
    with pytest.raises(ValueError, match="the same"):
        scheduler.run_ahead([SECONDS] * 6, lambda name: answer("0"))
