"""A step planned while the one before it runs: what is not known yet, and what is seen late."""

from collections.abc import Callable
from typing import Any

import pytest

from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import PLACEHOLDER, PromptLogprobs, StepPlan, StepResult
from blockyard.scheduler.request import FinishReason, RequestSpec
from blockyard.scheduler.sampling import SamplingParams, TokenLogprobs
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.fake import witness_generate

Make = Callable[..., Any]


@pytest.fixture
def plans(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> list[StepPlan]:
    """Every plan that a rig makes."""
    made: list[StepPlan] = []
    hold = make_rig._hold_against_laws

    def note(rig: Any, plan: StepPlan, fenced: int) -> None:
        made.append(plan)
        hold(rig, plan, fenced)

    monkeypatch.setattr(make_rig, "_hold_against_laws", note)
    return made


def test_a_token_under_way_is_a_placeholder_and_both_steps_promise_slots(
    make_rig: Make, prompt_of: Make, plans: list[StepPlan]
) -> None:
    rig = make_rig(num_blocks=20, depth=2)
    rig.submit("a", prompt_of(6), max_tokens=5)
    assert rig.plan() and rig.plan() and not rig.scheduler.may_plan
    assert (plans[1].starts, plans[1].token_ids) == ((6,), (PLACEHOLDER,))
    slots = rig.scheduler.ledger().slots
    assert (slots.filled, slots.promised, slots.empty_tail) == (0, 7, 1)
    rig.commit()
    slots = rig.scheduler.ledger().slots
    assert (slots.filled, slots.promised, slots.empty_tail) == (6, 1, 1)
    rig.finish()


def test_the_next_chunk_of_a_prompt_needs_no_placeholder(
    make_rig: Make, prompt_of: Make, plans: list[StepPlan]
) -> None:
    rig = make_rig(num_blocks=20, depth=2, max_step_tokens=9)
    rig.submit("a", prompt_of(16), max_tokens=3)
    assert rig.plan() and rig.plan()
    assert [plan.starts for plan in plans] == [(0,), (9,)]
    assert plans[1].token_ids == tuple(prompt_of(16)[9:])
    rig.finish()


def test_who_has_its_last_token_under_way_is_planned_no_more(
    make_rig: Make, prompt_of: Make, plans: list[StepPlan]
) -> None:
    rig = make_rig(num_blocks=20, depth=2)
    rig.submit("a", prompt_of(6), max_tokens=2)
    assert rig.plan() and rig.plan()
    rig.commit()
    assert not rig.plan()  # which is no stall: a step is in flight
    rig.commit()
    assert rig.reasons == {"a": FinishReason.LENGTH}
    assert rig.computed_tokens == 7
    rig.finish()


def test_a_stop_seen_late_computes_once_in_vain_and_keeps_the_fence(
    make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=20, depth=2)
    (first,) = witness_generate(prompt_of(6), 1, rig.vocab)
    rig.submit("a", prompt_of(6), max_tokens=9, stop=(first,))
    assert rig.plan() and rig.plan()
    rig.commit()
    assert rig.reasons == {"a": FinishReason.STOP}
    rig.acknowledge(1)
    rig.check()
    ledger = rig.scheduler.ledger()
    assert (ledger.blocks.active, ledger.blocks.fenced, ledger.slots.promised) == (0, 2, 0)
    rig.commit()  # of the step that computed in vain
    assert len(rig.outputs["a"]) == 1
    rig.acknowledge(2)
    blocks = rig.scheduler.ledger().blocks
    assert (blocks.cached, blocks.fenced) == (1, 0)  # nothing of that step is to be found
    rig.finish()


def test_a_row_error_is_followed_by_nothing(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=20, depth=2)
    rig.submit("bad", prompt_of(6), max_tokens=9)
    rig.submit("good", prompt_of(5, 1), max_tokens=9)
    assert rig.plan() and rig.plan()
    rig.fail("bad")
    rig.commit()
    assert rig.reasons == {"bad": FinishReason.ERROR}
    rig.commit()
    assert rig.outputs["bad"] == []
    rig.finish()
    assert rig.reasons["good"] is FinishReason.LENGTH


@pytest.mark.parametrize("before", range(12))
def test_o15_an_abort_at_any_moment_is_the_last_that_is_heard(
    make_rig: Make, prompt_of: Make, before: int
) -> None:
    """Chunks of 8 of a prompt of 64; a plan or a commit is one moment."""
    rig = make_rig(num_blocks=60, depth=2, max_step_tokens=9, max_running=4)
    rig.submit("gone", prompt_of(64), max_tokens=9)
    rig.submit("stays", prompt_of(7, 1), max_tokens=9)
    for moment in range(before):
        if rig.scheduler.may_plan and (moment % 2 == 0 or not rig.in_flight):
            rig.plan()
        else:
            rig.commit()
    rig.abort("gone")
    rig.check()
    heard = list(rig.outputs["gone"])
    rig.finish()
    assert rig.outputs["gone"] == heard
    assert rig.reasons == {"gone": FinishReason.ABORT, "stays": FinishReason.LENGTH}


def test_a_victim_leaves_the_step_before_it_loses_its_place(
    make_rig: Make, prompt_of: Make, plans: list[StepPlan]
) -> None:
    rig = make_rig(num_blocks=20, depth=2, max_running=1)
    rig.submit("low", prompt_of(6), max_tokens=9)
    rig.step()
    assert rig.scheduler.may_plan  # the second step of "low" is in flight
    rig.submit("high", prompt_of(5, 1), max_tokens=1, priority=1)
    assert not rig.plan()
    assert rig.scheduler.ledger().preemptions == 0
    rig.commit()
    rig.acknowledge(2)
    assert rig.plan()
    assert rig.scheduler.ledger().preemptions == 1
    assert len(rig.outputs["low"]) == 2  # what was under way is not lost
    rig.finish()
    assert rig.ended == ["high", "low"]


def test_for_blocks_too_a_victim_first_ends_its_step(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=4, depth=2)
    rig.submit("old", prompt_of(7), max_tokens=9)
    rig.submit("young", prompt_of(3, 1), max_tokens=9)
    rig.finish()
    ledger = rig.scheduler.ledger()
    assert ledger.preemptions and ledger.stalled_steps == 0
    assert rig.ended == ["old", "young"]


def test_who_forks_waits_until_its_choices_have_begun(
    make_rig: Make, prompt_of: Make, plans: list[StepPlan]
) -> None:
    rig = make_rig(num_blocks=40, depth=2)
    rig.submit("many", prompt_of(6), max_tokens=5, num_choices=3)
    rig.submit("one", prompt_of(5, 1), max_tokens=5)
    assert rig.plan() and rig.plan()
    assert plans[0].forks and plans[1].handles == plans[0].handles[1:]
    rig.commit()
    rig.acknowledge(1)
    assert rig.plan()
    assert len(plans[2].handles) == 4
    rig.finish()


def test_a_choice_called_off_before_it_begins_is_forgotten_at_once(
    make_rig: Make, prompt_of: Make, plans: list[StepPlan]
) -> None:
    rig = make_rig(num_blocks=40, depth=2)
    rig.submit("many", prompt_of(6), max_tokens=5, num_choices=2)
    assert rig.plan()
    assert rig.abort_choice("many", 1)
    assert rig.plan()
    # Else its parent would write to a block that two tables share.
    assert plans[1].forgotten == (plans[0].forks[0].handle,)
    assert plans[1].handles == plans[0].handles
    rig.finish()


def test_who_ends_before_its_choices_begin_takes_their_handles_along(
    make_rig: Make, prompt_of: Make, plans: list[StepPlan]
) -> None:
    rig = make_rig(num_blocks=40, depth=2)
    rig.submit("many", prompt_of(6), max_tokens=5, num_choices=2)
    assert rig.plan()
    rig.abort("many")
    rig.submit("next", prompt_of(5, 1), max_tokens=2)
    assert rig.plan()
    assert set(plans[1].forgotten) == {*plans[0].handles, plans[0].forks[0].handle}
    rig.finish()


def test_equal_blocks_merge_under_a_choice_that_has_not_begun(
    make_rig: Make, prompt_of: Make, plans: list[StepPlan]
) -> None:
    """Its parent's table changes while the step that begins it is in flight."""
    rig = make_rig(num_blocks=40, depth=2, max_step_tokens=9, max_running=4)
    rig.submit("other", prompt_of(9)[:8], max_tokens=9)
    assert rig.plan()
    rig.submit("r", prompt_of(9), max_tokens=9, priority=1, num_choices=2)
    assert rig.plan()  # the two blocks that "other" computes, once more
    rig.commit()
    assert rig.plan()
    (fork,) = plans[2].forks
    rig.commit()
    assert rig.scheduler.ledger().merged_blocks == 2
    assert rig.plan()
    moved = [replacement.handle for replacement in plans[3].replacements]
    assert moved.count(fork.parent) == moved.count(fork.handle) == 2
    rig.finish()


def test_after_an_abort_the_scores_of_a_prompt_are_not_told_either() -> None:
    scheduler = Scheduler(SchedulerConfig(64, pipeline_depth=2), 8)
    sampling = SamplingParams(max_tokens=3, prompt_logprobs=0)
    scheduler.submit(RequestSpec("a", (1, 2, 3), sampling), 0.0)
    plan = scheduler.plan(0.0)
    assert plan is not None
    scores = PromptLogprobs(plan.handles[0], 1, (TokenLogprobs(0.0, 1),) * 2)
    assert scheduler.abort("a")
    result = StepResult(plan.step, (7,), prompt_logprobs=(scores,))
    assert scheduler.commit(result, 0.0) == []


def test_depths_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="pipeline_depth is 3"):
        SchedulerConfig(64, pipeline_depth=3)
