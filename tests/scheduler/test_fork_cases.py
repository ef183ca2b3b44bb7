"""Several answers to one prompt: one prefill, shared blocks, copies only where they part."""

from collections.abc import Callable
from typing import Any

import pytest

from blockyard.scheduler.config import PreemptionPolicy
from blockyard.scheduler.request import FinishReason, RequestRefused

Make = Callable[..., Any]


@pytest.mark.parametrize("prompt", [7, 8, 9, 1])
def test_one_prefill_and_as_many_tails_as_choices(
    prompt: int, make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=40, max_step_tokens=32)
    rig.submit("r", prompt_of(prompt), max_tokens=6, num_choices=4)
    rig.step()
    ledger = rig.scheduler.ledger()
    assert ledger.requests.running == 4
    assert (ledger.slots.filled, ledger.logical_tokens) == (prompt, 4 * prompt)
    assert ledger.blocks.active == -(-prompt // 4)
    rig.step()
    ledger = rig.scheduler.ledger()
    # A last block that is not full is copied by all but the last to write to it.
    assert ledger.copied_blocks == (3 if prompt % 4 else 0)
    assert ledger.blocks.active == prompt // 4 + 4
    rig.finish()
    assert rig.computed_tokens == prompt + 4 * 5
    assert len({tuple(output) for output in rig.outputs.values()}) == 4


def test_o10_choices_of_a_high_priority_win_a_full_batch(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=200, max_running=3)
    for index in range(3):
        rig.submit(f"low {index}", prompt_of(10, index), max_tokens=200)
    for _ in range(5):
        rig.step()
    rig.submit("high", prompt_of(9, 7), max_tokens=5, num_choices=3, priority=1)
    rig.finish()
    assert set(rig.ended[:3]) == {"high", "high/1", "high/2"}
    assert rig.scheduler.ledger().preemptions == 3


def test_o10_with_equal_priority_nobody_is_evicted(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=200, max_running=3)
    for index in range(2):
        rig.submit(f"old {index}", prompt_of(10, index), max_tokens=30)
    rig.submit("new", prompt_of(9, 7), max_tokens=5, num_choices=3)
    rig.step()
    assert rig.started == ["old 0", "old 1"]
    rig.finish()
    assert rig.scheduler.ledger().preemptions == 0


@pytest.mark.parametrize("policy", PreemptionPolicy)
@pytest.mark.parametrize("cached", [True, False])
def test_o11_many_choices_fill_the_host(
    policy: PreemptionPolicy, cached: bool, make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(
        num_blocks=24,
        num_host_blocks=8,
        policy=policy,
        max_running=12,
        max_step_tokens=48,
        link_rate=100.0,
        prefill_rate=4.0,
    )
    for index in range(12):
        rig.submit(str(index), prompt_of(12, index), 40, num_choices=3, use_prefix_cache=cached)
    rig.finish()
    ledger = rig.scheduler.ledger()
    assert len(rig.ended) == 36 and ledger.preemptions > 0
    assert ledger.recomputed_tokens > 0, "the host was full"


def test_o20_choices_differ_and_are_the_same_again(make_rig: Make, prompt_of: Make) -> None:
    outputs = []
    for _ in range(2):
        rig = make_rig(num_blocks=60)
        stop = tuple(range(0, 97, 9))
        rig.submit("r", prompt_of(11), max_tokens=30, stop=stop, num_choices=4)
        rig.finish()
        assert sorted(rig.ended) == ["r", "r/1", "r/2", "r/3"], "each ends once"
        outputs.append(dict(rig.outputs))
    assert outputs[0] == outputs[1]
    assert len({tuple(tokens) for tokens in outputs[0].values()}) == 4
    assert len({len(tokens) for tokens in outputs[0].values()}) > 1, "one ends before another"


def test_an_abort_ends_all_choices(make_rig: Make, prompt_of: Make) -> None:
    for steps in range(4):
        for in_flight in (False, True):
            rig = make_rig(num_blocks=40, max_step_tokens=9)
            rig.submit("r", prompt_of(10), max_tokens=9, num_choices=3)
            rig.submit("other", prompt_of(10, 1), max_tokens=9)
            for _ in range(steps):
                rig.step()
            if in_flight:
                rig.plan()
            rig.abort("r")
            rig.check()
            rig.finish()
            assert rig.ended == ["other"]


def test_a_choice_that_fails_ends_alone(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=40)
    rig.submit("r", prompt_of(10), max_tokens=5, num_choices=3)
    rig.step()
    rig.plan()
    rig.fail("r/1")
    rig.commit()
    rig.finish()
    assert rig.reasons["r/1"] is FinishReason.ERROR
    assert sorted(rig.ended) == ["r", "r/1", "r/2"]


def test_preempted_before_its_fork_a_request_forks_later(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=40, max_running=3, max_step_tokens=8)
    rig.submit("low", prompt_of(20), max_tokens=6, num_choices=3)
    rig.step()
    rig.submit("high", prompt_of(9, 1), max_tokens=4, priority=1)
    rig.step()
    ledger = rig.scheduler.ledger()
    assert (ledger.preemptions, ledger.requests.parked) == (1, 1)
    rig.finish()
    assert rig.ended[0] == "high" and len(rig.ended) == 4


@pytest.mark.parametrize("policy", PreemptionPolicy)
def test_a_preempted_choice_finds_its_prompt_again(
    policy: PreemptionPolicy, make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=12, num_host_blocks=12, policy=policy, max_step_tokens=40)
    rig.submit("r", prompt_of(16), max_tokens=24, num_choices=3)
    rig.finish()
    ledger = rig.scheduler.ledger()
    assert ledger.preemptions > 0 and len(rig.ended) == 3
    if policy is not PreemptionPolicy.SWAP:
        # Whatever else is lost, the prompt's blocks are the others' too.
        assert ledger.recomputed_tokens <= ledger.preemptions * 24


def test_blocks_of_equal_choices_are_merged(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=40, vocab=1)
    rig.submit("r", [0] * 5, max_tokens=12, num_choices=3)
    while rig.live():
        assert rig.scheduler.ledger().blocks.active <= 4 + 2
        rig.step()
    assert rig.scheduler.ledger().merged_blocks > 0


def test_more_choices_than_can_run_are_refused_at_the_door(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=40, max_running=3)
    for number in (0, 4):
        with pytest.raises(
            RequestRefused, match=f"{number} choices are asked for; from 1 to 3"
        ) as e:
            rig.submit("r", prompt_of(4), num_choices=number)
        assert e.value.field == "n"


def test_a_running_choice_branches_where_it_is(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=40, max_running=3)
    rig.submit("r", prompt_of(10), max_tokens=12)
    assert not rig.fork("r", 1), "it does not run yet"
    for _ in range(4):
        rig.step()
    assert rig.fork("r", 5)
    assert not rig.fork("r", 5) and not rig.scheduler.fork("r", 3, 4)
    rig.step()
    assert rig.outputs["r/5"][:3] == rig.outputs["r"][:3]
    assert rig.outputs["r/5"] != rig.outputs["r"]
    assert rig.fork("r/5", 6)
    assert not rig.fork("r", 7), "no place is left"
    rig.finish()
    assert sorted(rig.ended) == ["r", "r/5", "r/6"]
    assert {len(output) for output in rig.outputs.values()} == {12}


def test_the_last_choice_alone_writes_in_place(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=40)
    rig.submit("r", prompt_of(6), max_tokens=1, stop=(), num_choices=2)
    rig.finish()
    assert rig.scheduler.ledger().copied_blocks == 0
    rig = make_rig(num_blocks=3, num_host_blocks=0, max_step_tokens=20)
    rig.submit("r", prompt_of(10), max_tokens=3, num_choices=4)
    rig.finish()
    # There is no block for a copy: the first to write needs the others to give way.
    ledger = rig.scheduler.ledger()
    assert (ledger.copied_blocks, ledger.preemptions) == (0, 3)


def test_a_choice_follows_when_a_block_of_its_parent_is_merged(
    make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=20, max_step_tokens=12)
    rig.submit("other", prompt_of(8), max_tokens=9)
    rig.submit("r", prompt_of(8), max_tokens=9, num_choices=2)
    rig.step()
    rig.step()
    # The second block was computed twice, and merged in the very step in which they forked.
    ledger = rig.scheduler.ledger()
    assert (ledger.merged_blocks, ledger.requests.running) == (1, 3)
    rig.finish()
