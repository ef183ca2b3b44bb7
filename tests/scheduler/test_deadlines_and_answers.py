"""Deadlines, explanations and tenants, asked of a scheduler that runs."""

from collections.abc import Callable

import pytest

from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.explain import WaitReason
from blockyard.scheduler.plan import StepResult
from blockyard.scheduler.request import (
    FinishReason,
    RefusalCode,
    RequestRefused,
    RequestSpec,
    RequestState,
    RequestUpdate,
)
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler

Submit = Callable[..., None]


@pytest.fixture
def scheduler() -> Scheduler:
    """Two places, 40 blocks of 4; 100 tokens a second of prefill, 0.1 s a step."""
    config = SchedulerConfig(
        max_context_tokens=200, block_size=4, max_running=2, max_step_tokens=16, max_waiting=100
    )
    rates = RateMeter(64, prefill_tokens_per_second=100.0, link_bytes_per_second=1e6)
    for _ in range(200):
        rates.observe_step(0, 2, 0.1)
    return Scheduler(config, 40, rates=rates)


@pytest.fixture
def submit(scheduler: Scheduler) -> Submit:
    def submit(
        name: str,
        prompt: int,
        max_tokens: int = 50,
        deadline: float | None = None,
        tenant: str = "",
        now: float = 0.0,
    ) -> None:
        # Prompts share nothing: each is made of a token of its own.
        token = 1 + sum(map(ord, name))
        spec = RequestSpec(
            name,
            (token,) * prompt,
            SamplingParams(max_tokens=max_tokens),
            tenant=tenant,
            deadline_seconds=deadline,
        )
        scheduler.submit(spec, now)

    return submit


def step(scheduler: Scheduler, now: float = 0.0) -> list[RequestUpdate]:
    plan = scheduler.plan(now)
    assert plan is not None
    scheduler.check()
    result = StepResult(plan.step, (1,) * plan.num_samples, compute_seconds=0.1)
    updates = scheduler.commit(result, now)
    scheduler.acknowledge(plan.step)
    scheduler.check()
    return updates


def test_a_deadline_that_nobody_could_meet_is_the_callers_mistake(submit: Submit) -> None:
    with pytest.raises(RequestRefused) as refused:
        submit("a", 100, deadline=0.5)
    assert refused.value.code is RefusalCode.INVALID
    assert refused.value.field == "deadline_seconds"
    assert "0.5 s away" in refused.value.message


def test_a_deadline_that_the_queue_outlasts_is_the_loads_fault(submit: Submit) -> None:
    for name in "abcdef":
        submit(name, 100)
    submit("in time", 10, deadline=60.0)
    with pytest.raises(RequestRefused) as refused:
        submit("late", 10, deadline=2.0)
    assert refused.value.code is RefusalCode.EXHAUSTED


def test_what_waits_too_long_ends_before_its_prefill_and_is_told(
    scheduler: Scheduler, submit: Submit
) -> None:
    submit("a", 8)
    submit("b", 8)
    step(scheduler)
    submit("waits", 50, deadline=10.0)
    assert scheduler.expire(9.0) == []
    (update,) = scheduler.expire(9.9)
    assert update.request_id == "waits"
    assert update.finish_reason is FinishReason.DEADLINE
    assert "deadline" in update.error
    assert update.timings is not None and update.timings.queue_seconds == pytest.approx(9.9)
    scheduler.check()
    assert scheduler.expire(11.0) == []
    assert scheduler.num_requests == 2


def test_what_has_started_is_not_dropped(scheduler: Scheduler, submit: Submit) -> None:
    submit("a", 8, deadline=5.0)
    step(scheduler)
    assert scheduler.expire(100.0) == []
    assert scheduler.abort("a")
    assert scheduler.expire(101.0) == []


def test_explanations_follow_a_request_through_its_life(
    scheduler: Scheduler, submit: Submit
) -> None:
    assert scheduler.explain("a") == ()
    submit("a", 100)
    (told,) = scheduler.explain("a")
    assert told.state is RequestState.WAITING
    step(scheduler)
    (told,) = scheduler.explain("a")
    assert told.reason is WaitReason.NOTHING
    assert told.estimate_seconds is not None and told.estimate_seconds > 0.5
    for _ in range(10):
        step(scheduler)
    submit("big", 90)
    (told,) = scheduler.explain("big")
    assert told.reason is WaitReason.BLOCKS
    assert told.holders[0].request_id == "a" and told.holders[0].num_blocks >= 25
    assert told.blocks_short >= 90 // 4 - 15
    scheduler.abort("a")
    scheduler.abort("big")
    assert scheduler.explain("a") == ()


def test_an_explanation_names_whose_prefix_is_waited_for(
    scheduler: Scheduler, submit: Submit
) -> None:
    submit("first", 60)
    for _ in range(3):
        step(scheduler)
    spec = RequestSpec("second", (1 + sum(map(ord, "first")),) * 60, SamplingParams(max_tokens=5))
    scheduler.submit(spec, 0.0)
    assert scheduler.plan(0.0) is not None
    (told,) = scheduler.explain("second")
    assert (told.reason, told.behind) == (WaitReason.PREFIX, "first")


def finish_order(scheduler: Scheduler) -> list[str]:
    """Who ends, in order, until nobody is left."""
    ended = []
    while scheduler.has_work:
        ended += [u.request_id for u in step(scheduler) if u.finish_reason is not None]
    return ended


def test_a_flood_of_one_tenant_delays_another_by_a_turn(
    scheduler: Scheduler, submit: Submit
) -> None:
    for index in range(30):
        submit(f"flood {index}", 8, max_tokens=4, tenant="flood")
    step(scheduler)
    submit("quiet 0", 8, max_tokens=4, tenant="quiet")
    submit("quiet 1", 8, max_tokens=4, tenant="quiet")
    order = finish_order(scheduler)
    assert order.index("quiet 0") <= 3
    assert order.index("quiet 1") <= 5
    assert len(order) == 32


def test_tenants_get_equal_tokens_and_not_equal_requests(
    scheduler: Scheduler, submit: Submit
) -> None:
    """One asks three times as much with each request, so it gets a third of the requests."""
    for index in range(24):
        submit(f"small {index}", 4, max_tokens=4, tenant="small")
        submit(f"large {index}", 12, max_tokens=12, tenant="large")
    order = finish_order(scheduler)
    first_smalls_end = order.index("small 23")
    larges_by_then = sum(name.startswith("large") for name in order[:first_smalls_end])
    assert 5 <= larges_by_then <= 11


def test_everybody_without_a_tenant_is_served_by_age(scheduler: Scheduler, submit: Submit) -> None:
    for index in range(12):
        submit(f"{index:02}", 8, max_tokens=3)
    assert finish_order(scheduler) == [f"{index:02}" for index in range(12)]
