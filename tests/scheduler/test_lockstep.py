"""What decodes in lockstep is planned and booked as if each were looked at alone, for less work."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.due_times import DueTimes
from blockyard.scheduler.plan import PLACEHOLDER, StepPlan, StepResult
from blockyard.scheduler.request import FinishReason, Request, RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler

Make = Callable[..., Any]


def decoding(count: int, max_tokens: int = 1000, depth: int = 1) -> Scheduler:
    """So many requests of ten tokens each, all of which have told their first token."""
    limits = SchedulerConfig(
        max_context_tokens=4096,
        max_running=count,
        max_step_tokens=32 * count,
        max_waiting=count,
        pipeline_depth=depth,
    )
    scheduler = Scheduler(limits, 100 * count)
    for number in range(count):
        spec = RequestSpec(str(number), (number,) * 10, SamplingParams(max_tokens))
        scheduler.submit(spec, 0.0)
    commit(scheduler, plan(scheduler))
    return scheduler


def plan(scheduler: Scheduler) -> StepPlan:
    made = scheduler.plan(0.0)
    assert made is not None
    made.check()
    scheduler.check()
    return made


def commit(scheduler: Scheduler, made: StepPlan) -> list[Any]:
    """Each row samples its own handle."""
    handles = [h for h, samples in zip(made.handles, made.samples, strict=True) if samples]
    updates = scheduler.commit(StepResult(made.step, tuple(handles)), 0.0)
    scheduler.check()
    scheduler.acknowledge(made.step)
    return updates


def lines_of(scheduler: Scheduler) -> int:
    """Lines of Python that one step runs, a generator's and a comprehension's each time."""
    lines = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    sys.settrace(count)
    try:
        made = scheduler.plan(0.0)
        assert made is not None
        scheduler.commit(StepResult(made.step, (1,) * len(made.handles)), 0.0)
        scheduler.acknowledge(made.step)
    finally:
        sys.settrace(None)
    return lines


def test_a_step_between_two_blocks_costs_little_for_each_who_runs() -> None:
    few, many = decoding(8), decoding(200)
    for scheduler in (few, many):
        commit(scheduler, plan(scheduler))  # they fall in
    # What is left for each is to append its token.
    assert lines_of(many) - lines_of(few) <= 3 * (200 - 8)


def test_who_ends_in_one_step_leaves_the_others_in_lockstep() -> None:
    scheduler = decoding(4)
    for ended in ("2", "0"):
        made = plan(scheduler)
        assert scheduler.abort(ended)
        scheduler.check()
        told = [update.request_id for update in commit(scheduler, made)]
        assert ended not in told and len(told) == len(made.handles) - 1
    made = plan(scheduler)
    assert [update.request_id for update in commit(scheduler, made)] == ["1", "3"]
    # Each has had the token of its own row all the time.
    assert plan(scheduler).token_ids == made.handles


def test_who_comes_and_goes_leaves_each_its_own_newest_token() -> None:
    scheduler = decoding(4)
    for number in range(4):
        assert scheduler.abort(str(number))
    lives = iter((3, 50, 5, 4, 50, 3, 2, 50))
    for step in range(12):
        while scheduler.num_requests < 4 and (life := next(lives, None)) is not None:
            spec = RequestSpec(f"{step}-{life}", (step,) * 10, SamplingParams(life))
            scheduler.submit(spec, 0.0)
        made = plan(scheduler)
        rows = zip(made.handles, made.counts, strict=True)
        # Whoever decodes has sampled its own handle before.
        told = iter(made.token_ids)
        for handle, count in rows:
            token_ids = [next(told) for _ in range(count)]
            assert count == 10 or token_ids == [handle]
        commit(scheduler, made)
    assert scheduler.num_requests == 3


def test_who_comes_and_goes_costs_others_nothing() -> None:
    few, many = decoding(8), decoding(200)
    for scheduler in (few, many):
        commit(scheduler, plan(scheduler))
        # The oldest ends, and another falls in by the next step but one.
        made = plan(scheduler)
        commit(scheduler, made)
        assert scheduler.abort("0")
        scheduler.submit(RequestSpec("new", (1,) * 10, SamplingParams(99)), 0.0)
        commit(scheduler, plan(scheduler))
    # No row is looked at but to append its token and to go on.
    assert lines_of(many) - lines_of(few) <= 2 * (200 - 8)


def test_tokens_under_way_are_placeholders_for_all_but_who_has_just_come() -> None:
    scheduler = decoding(3, depth=2)
    first = plan(scheduler)
    assert first.token_ids == first.handles
    second = plan(scheduler)
    assert second.token_ids == (PLACEHOLDER,) * 3
    assert second.starts == tuple(start + 1 for start in first.starts)
    commit(scheduler, first)
    third = plan(scheduler)
    assert third.token_ids == (PLACEHOLDER,) * 3
    commit(scheduler, second)
    commit(scheduler, third)
    assert plan(scheduler).token_ids == first.handles


@pytest.mark.parametrize("depth", [1, 2])
def test_all_end_with_their_last_token_and_take_no_block_for_it(depth: int) -> None:
    # The last of 7 tokens would be the 17th: it is sent, but takes no slot.
    scheduler = decoding(3, max_tokens=7, depth=depth)
    in_flight: list[StepPlan] = []
    ended: list[Any] = []
    while scheduler.has_work:
        while scheduler.may_plan and (made := scheduler.plan(0.0)) is not None:
            in_flight.append(made)
        assert not any(made.grants for made in in_flight)
        ended += [u for u in commit(scheduler, in_flight.pop(0)) if u.finish_reason]
    assert [(u.request_id, u.finish_reason) for u in ended] == [
        (str(number), FinishReason.LENGTH) for number in range(3)
    ]
    assert scheduler.ledger().blocks.active == 0


def test_a_stop_token_ends_those_alone_who_want_it() -> None:
    scheduler = Scheduler(SchedulerConfig(max_context_tokens=256, max_running=8), 100)
    for name, stop, least in (("a", (9,), 0), ("b", (), 0), ("c", (9,), 4)):
        sampling = SamplingParams(50, stop_token_ids=stop, min_tokens=least)
        scheduler.submit(RequestSpec(name, (5,) * 8, sampling, use_prefix_cache=False), 0.0)
    ended = {}
    for step, token in enumerate((1, 1, 9, 1, 9), 1):
        made = plan(scheduler)
        result = StepResult(made.step, (token,) * made.num_samples)
        for update in scheduler.commit(result, 0.0):
            assert update.token_ids == (token,)
            if update.finish_reason is not None:
                ended[update.request_id] = step, update.finish_reason
        scheduler.check()
    assert ended == {"a": (3, FinishReason.STOP), "c": (5, FinishReason.STOP)}


@pytest.mark.parametrize("length", [5, 6, 7, 8])
def test_who_is_to_leave_takes_no_turn_from_who_stays(
    make_rig: Make, prompt_of: Make, length: int
) -> None:
    """Both use up a block in one step, in which the younger is left out for a third."""
    for before in range(1, 5):
        for after in range(1, 9):
            rig = make_rig(num_blocks=60, block_size=4, max_running=2, depth=2)
            rig.submit("low", prompt_of(5), max_tokens=30)
            for _ in range(before):
                rig.step()
            rig.submit("high", prompt_of(length, 1), max_tokens=30, priority=1)
            for _ in range(after):
                rig.step()
            rig.submit("highest", prompt_of(6, 2), max_tokens=3, priority=2)
            rig.finish()


def test_what_decodes_in_lockstep_is_charged_to_its_tenant() -> None:
    limits = SchedulerConfig(max_context_tokens=256, max_running=1, max_step_tokens=64)
    scheduler = Scheduler(limits, 100)
    for name, tenant in (("first", "a"), ("second", "a"), ("other", "b")):
        spec = RequestSpec(name, (1,) * 8, SamplingParams(9), tenant=tenant, use_prefix_cache=False)
        scheduler.submit(spec, 0.0)
        if name == "first":
            commit(scheduler, plan(scheduler))
    told = [commit(scheduler, plan(scheduler))[0].request_id for _ in range(9)]
    # The other came later, at a charge equal to that of those who waited; then eight were decoded.
    assert told == ["first"] * 8 + ["other"]


def test_who_falls_out_is_not_due_any_more() -> None:
    due = DueTimes()
    first, second, third = (object() for _ in range(3))  # anything that can be told apart
    requests: list[Request] = [first, second, third]  # type: ignore[list-item]
    due.put(requests[0], 5)
    due.put_all(requests[1:], 5)
    due.put(requests[0], 7)
    due.drop(requests[1], 5)
    due.drop(requests[1], 6)
    assert due.is_due(requests[0], 5) and not due.is_due(requests[1], 5)
    assert (due.take(4), due.take(5), len(due)) == ([], [first, third], 1)
    due.put(requests[2], 6)
    assert due.take_until(6) == [third]
    assert due.take_until(7) == [first]
    assert len(due) == 0
