import pytest

from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import Admission, BlockGrant, RowError, StepPlan, StepResult
from blockyard.scheduler.request import FinishReason, RequestSpec, RequestUpdate, Timings
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler, StepOrderError


def make(num_blocks: int = 20, max_running: int = 4, max_step_tokens: int = 16) -> Scheduler:
    config = SchedulerConfig(
        max_context_tokens=100,
        block_size=4,
        max_running=max_running,
        max_step_tokens=max_step_tokens,
    )
    return Scheduler(config, num_blocks)


def spec(name: str, prompt: int, priority: int = 0, **sampling: object) -> RequestSpec:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    # Without the prefix cache: who finds what is shown elsewhere.
    return RequestSpec(name, tuple(range(prompt)), params, priority, use_prefix_cache=False)


def planned(scheduler: Scheduler, now: float = 0.0) -> StepPlan:
    plan = scheduler.plan(now)
    assert plan is not None
    plan.check()
    scheduler.check()
    return plan


def committed(
    scheduler: Scheduler, plan: StepPlan, *tokens: int, now: float = 0.0, acknowledge: bool = True
) -> list[RequestUpdate]:
    updates = scheduler.commit(StepResult(plan.step, tokens), now)
    if acknowledge:
        scheduler.acknowledge(plan.step)
    scheduler.check()
    return updates


def test_one_request_from_admission_to_its_end() -> None:
    scheduler = make()
    request = spec("r", 18, max_tokens=2)
    scheduler.submit(request, now=1.0)
    first = planned(scheduler, now=2.0)
    assert first == StepPlan(
        step=1,
        forgotten=(),
        admitted=(Admission(1, request.sampling, 18),),
        grants=(BlockGrant(1, (0, 1, 2, 3)),),
        handles=(1,),
        starts=(0,),
        counts=(16,),
        samples=(False,),
        token_ids=tuple(range(16)),
    )
    assert scheduler.ledger().slots.promised == 16
    assert committed(scheduler, first, now=3.0) == []
    second = planned(scheduler, now=4.0)
    assert (second.starts, second.counts, second.samples) == ((16,), (2,), (True,))
    assert second.grants == (BlockGrant(1, (4,)),)
    assert (second.admitted, second.token_ids) == ((), (16, 17))
    assert committed(scheduler, second, 50, now=5.0) == [RequestUpdate("r", (50,))]
    slots = scheduler.ledger().slots
    assert (slots.filled, slots.promised, slots.empty_tail) == (18, 0, 2)
    third = planned(scheduler, now=6.0)
    assert (third.starts, third.token_ids, third.grants) == ((18,), (50,), ())
    (last,) = committed(scheduler, third, 51, now=8.0)
    assert last == RequestUpdate(
        "r", (51,), FinishReason.LENGTH, timings=Timings(1.0, 3.0, 3.0, preemptions=0)
    )
    assert not scheduler.has_work
    assert scheduler.plan(9.0) is None
    assert scheduler.ledger().stalled_steps == 0
    scheduler.submit(spec("next", 1), now=9.0)
    fourth = planned(scheduler)
    assert (fourth.step, fourth.forgotten, fourth.handles) == (4, (1,), (2,))


def test_the_last_token_needs_no_slot() -> None:
    scheduler = make(num_blocks=1)
    scheduler.submit(spec("r", 3, max_tokens=2), 0.0)
    committed(scheduler, planned(scheduler), 9)
    (last,) = committed(scheduler, planned(scheduler), 9)
    assert last.finish_reason is FinishReason.LENGTH


def test_decodes_get_their_token_beside_a_long_prompt() -> None:
    scheduler = make(max_step_tokens=8)
    scheduler.submit(spec("a", 2, max_tokens=9), 0.0)
    scheduler.submit(spec("b", 2, max_tokens=9), 0.0)
    committed(scheduler, planned(scheduler), 5, 6)
    scheduler.submit(spec("long", 30, max_tokens=9, priority=0), 0.0)
    plan = planned(scheduler)
    assert plan.counts == (1, 1, 6)
    # Nor does it matter that a prompt stands in front of them, or behind.
    committed(scheduler, plan, 5, 6)
    scheduler.submit(spec("urgent", 30, 1, max_tokens=9), 0.0)
    assert planned(scheduler).counts == (1, 1, 5, 1)


def test_a_stop_token_ends_once_min_tokens_are_there() -> None:
    scheduler = make()
    scheduler.submit(spec("r", 2, max_tokens=9, min_tokens=2, stop_token_ids=(7,)), 0.0)
    (update,) = committed(scheduler, planned(scheduler), 7)
    assert update.finish_reason is None
    (update,) = committed(scheduler, planned(scheduler), 7)
    assert (update.token_ids, update.finish_reason) == ((7,), FinishReason.STOP)


def test_a_row_error_ends_that_request_alone() -> None:
    scheduler = make()
    scheduler.submit(spec("bad", 2), 0.0)
    scheduler.submit(spec("good", 2), 0.0)
    plan = planned(scheduler)
    result = StepResult(plan.step, (0, 5), errors=(RowError(plan.handles[0], "no finite logit"),))
    bad, good = scheduler.commit(result, 1.0)
    assert (bad.request_id, bad.token_ids, bad.finish_reason) == ("bad", (), FinishReason.ERROR)
    assert bad.error == "no finite logit" and bad.timings is not None
    assert good == RequestUpdate("good", (5,))
    scheduler.check()
    assert planned(scheduler).forgotten == (plan.handles[0],)


def test_abort_in_flight_fences_and_its_result_is_ignored() -> None:
    scheduler = make()
    scheduler.submit(spec("gone", 4), 0.0)
    scheduler.submit(spec("stays", 4), 0.0)
    plan = planned(scheduler)
    assert scheduler.abort("gone") and not scheduler.abort("gone")
    scheduler.check()
    blocks = scheduler.ledger().blocks
    assert (blocks.fenced, blocks.active) == (1, 1)
    assert committed(scheduler, plan, 8, 9, acknowledge=False) == [RequestUpdate("stays", (9,))]
    assert scheduler.ledger().blocks.fenced == 1
    scheduler.acknowledge(plan.step)
    assert scheduler.ledger().blocks.fenced == 0
    following = planned(scheduler)
    assert (following.forgotten, following.handles) == (plan.handles[:1], plan.handles[1:])


def test_abort_while_waiting_and_while_parked() -> None:
    scheduler = make(num_blocks=4, max_running=2)
    scheduler.submit(spec("old", 6, max_tokens=10), 0.0)
    scheduler.submit(spec("young", 2, max_tokens=9), 0.0)
    scheduler.submit(spec("waits", 2), 0.0)
    assert scheduler.abort("waits")
    scheduler.check()
    while not scheduler.ledger().requests.parked:
        plan = planned(scheduler)
        committed(scheduler, plan, *(1,) * sum(plan.samples))
    assert scheduler.ledger().preemptions == 1
    assert scheduler.abort("young") and not scheduler.abort("young")
    scheduler.check()
    assert scheduler.ledger().requests.parked == 0


def test_o28_an_id_reused_in_flight_does_not_get_the_old_result() -> None:
    scheduler = make()
    scheduler.submit(spec("r", 4), 0.0)
    plan = planned(scheduler)
    scheduler.abort("r")
    scheduler.submit(spec("r", 4), 0.0)
    assert committed(scheduler, plan, 9) == []
    again = planned(scheduler)
    assert again.handles != plan.handles and again.starts == (0,)


def test_nothing_is_planned_behind_a_closed_fence_and_that_is_no_stall() -> None:
    scheduler = make(num_blocks=1)
    scheduler.submit(spec("a", 3, max_tokens=1), 0.0)
    plan = planned(scheduler)
    committed(scheduler, plan, 9, acknowledge=False)
    scheduler.submit(spec("b", 3, max_tokens=1), 0.0)
    assert scheduler.plan(0.0) is None
    scheduler.check()
    scheduler.acknowledge(plan.step)
    assert planned(scheduler).token_ids == (0, 1, 2)


def test_alone_a_request_starts_with_what_is_free_while_fences_are_closed() -> None:
    scheduler = make(num_blocks=3)
    scheduler.submit(spec("a", 8, max_tokens=1), 0.0)
    plan = planned(scheduler)
    committed(scheduler, plan, 9, acknowledge=False)
    scheduler.submit(spec("b", 12, max_tokens=1), 0.0)
    part = planned(scheduler)
    assert (part.counts, part.samples) == ((4,), (False,))
    committed(scheduler, part, acknowledge=False)
    assert scheduler.plan(0.0) is None
    scheduler.acknowledge(plan.step)
    assert planned(scheduler).counts == (8,)


def test_nobody_is_preempted_for_what_a_fence_will_give() -> None:
    scheduler = make(num_blocks=5)
    for name in ("a", "b", "c"):
        scheduler.submit(spec(name, 4, max_tokens=8), 0.0)
    committed(scheduler, planned(scheduler), 1, 1, 1)
    plan = planned(scheduler)  # a and b take the last two blocks, c waits where it is
    assert len(plan.handles) == 2
    assert scheduler.ledger().requests.running == 3
    scheduler.abort("b")
    committed(scheduler, plan, 1, 1, acknowledge=False)
    assert scheduler.ledger().blocks.fenced == 2
    assert len(planned(scheduler).handles) == 1
    assert scheduler.ledger().preemptions == 0


def test_a_parked_request_recomputes_all_it_knew() -> None:
    scheduler = make(num_blocks=4)
    scheduler.submit(spec("old", 7, max_tokens=10), 0.0)
    scheduler.submit(spec("young", 3, max_tokens=9), 0.0)
    tokens: dict[str, list[int]] = {"old": [], "young": []}
    back: StepPlan | None = None
    for step in range(40):
        plan = scheduler.plan(float(step))
        if plan is None:
            break
        if step and plan.admitted:
            back = plan
            expected = (*range(3), *tokens["young"])
        sampled = range(step * 2, step * 2 + sum(plan.samples))
        for update in committed(scheduler, plan, *sampled, now=step + 0.5):
            tokens[update.request_id].extend(update.token_ids)
            if update.request_id == "young" and update.timings is not None:
                timings = update.timings
                ended_at = step + 0.5
    assert back is not None and back.admitted[0].prompt_tokens == 3
    assert len(expected) > 3 and back.token_ids[-len(expected) :] == expected
    assert len(tokens["old"]) == 10 and len(tokens["young"]) == 9
    # It started with the first step and was preempted while decoding.
    assert timings == Timings(0.0, 0.5, ended_at - 0.5, preemptions=1)


def test_calls_out_of_order_are_refused() -> None:
    scheduler = make()
    with pytest.raises(StepOrderError, match="step 1 came"):
        scheduler.commit(StepResult(1, ()), 0.0)
    with pytest.raises(StepOrderError, match="newest planned is 0"):
        scheduler.acknowledge(1)
    scheduler.submit(spec("r", 4), 0.0)
    plan = planned(scheduler)
    with pytest.raises(StepOrderError, match="step 1 is in flight"):
        scheduler.plan(0.0)
    with pytest.raises(StepOrderError, match="samples 1 tokens, its result has 2"):
        scheduler.commit(StepResult(1, (1, 2)), 0.0)
    with pytest.raises(StepOrderError):
        scheduler.commit(StepResult(2, (1,)), 0.0)
    committed(scheduler, plan, 1)


def test_check_names_the_block_and_the_request() -> None:
    scheduler = make()
    scheduler.submit(spec("r", 4), 0.0)
    committed(scheduler, planned(scheduler), 1)
    scheduler.batch.running[0].table.block_ids[0] = 3
    with pytest.raises(AssertionError, match=r"block \d has . references"):
        scheduler.check()
    scheduler.batch.running[0].table.block_ids[0] = 0
    scheduler.check()
    scheduler.batch.running[0].table.extend((7,))
    with pytest.raises(AssertionError, match="request 'r' holds 8 slots for 4 tokens"):
        scheduler.check()
