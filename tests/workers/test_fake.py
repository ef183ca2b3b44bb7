import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from blockyard.scheduler.plan import StepPlan
from blockyard.workers.config import Executor, WorkerConfig
from blockyard.workers.fake import (
    PlanRefused,
    WitnessWorker,
    witness_generate,
    witness_next_token,
)

VOCAB = 50_000
GOLDEN = [35679, 31536, 29033, 22145]
PROMPT = [10, 11, 12, 13, 14]

Planner = Callable[..., StepPlan]
Maker = Callable[..., WitnessWorker]


def test_it_answers_what_the_oracle_says(plan: Planner, make: Maker, first: StepPlan) -> None:
    worker = make()
    prompt = [10, 11, 12, 13, 14]
    (token,) = worker.execute(first).token_ids
    assert token == witness_next_token(prompt, VOCAB)
    (following,) = worker.execute(plan(2, rows={1: (5, (token,))})).token_ids
    assert [token, following] == witness_generate(prompt, 2, VOCAB)


def test_chunks_and_neighbours_make_no_difference(plan: Planner, make: Maker) -> None:
    worker = make()
    prompt = (10, 11, 12, 13, 14)
    worker.execute(
        plan(
            1,
            admitted=(1, 2),
            grants={1: (5,), 2: (1, 0)},
            rows={1: (0, prompt[:3]), 2: (0, (9,) * 5)},
        )
    )
    result = worker.execute(plan(2, grants={1: (2,)}, rows={2: (5, (8,)), 1: (3, prompt[3:])}))
    assert result.step == 2
    assert result.token_ids == (
        witness_next_token([9] * 5 + [8], VOCAB),
        witness_next_token(prompt, VOCAB),
    )


@pytest.mark.parametrize("slot", [5 * 4, 5 * 4 + 3, 2 * 4])
def test_any_slot_that_was_overwritten_shows(
    slot: int, plan: Planner, make: Maker, first: StepPlan
) -> None:
    worker = make()
    (token,) = worker.execute(first).token_ids
    worker._slots[slot] ^= 1
    (following,) = worker.execute(plan(2, rows={1: (5, (token,))})).token_ids
    assert following != witness_next_token([10, 11, 12, 13, 14, token], VOCAB)


def test_a_block_given_to_two_requests_is_refused_when_written(
    plan: Planner, make: Maker, first: StepPlan
) -> None:
    worker = make()
    (token,) = worker.execute(first).token_ids
    with pytest.raises(PlanRefused, match="handle 2 write to block 5, which 2 tables share"):
        worker.execute(
            plan(2, admitted=(2,), grants={2: (5,)}, rows={1: (5, (token,)), 2: (0, (10, 99))})
        )


def test_a_block_reused_while_it_is_still_read_shows(
    plan: Planner, make: Maker, first: StepPlan
) -> None:
    worker = make()
    worker.execute(first)
    # A prefix published too early: handle 2 counts on block 3, which nobody has filled.
    early = plan(2, admitted=(2,), grants={2: (3, 1)}, rows={2: (4, (14,))})
    assert worker.execute(early).token_ids != (witness_next_token(PROMPT, VOCAB),)


def test_blocks_in_another_order_show(plan: Planner, make: Maker, first: StepPlan) -> None:
    worker = make()
    worker.execute(first)
    swapped = plan(2, forgotten=(1,), admitted=(2,), grants={2: (2, 5)}, rows={2: (5, (15,))})
    assert worker.execute(swapped).token_ids != (witness_next_token([*PROMPT, 15], VOCAB),)


def test_blocks_filled_by_others_are_read_and_shared(
    plan: Planner, make: Maker, first: StepPlan
) -> None:
    worker = make()
    worker.execute(first)
    tail = (77, 78)
    result = worker.execute(
        plan(2, admitted=(2,), grants={2: (5, 0)}, rows={2: (4, tail), 1: (5, (15,))})
    )
    assert result.token_ids == (
        witness_next_token([*PROMPT[:4], *tail], VOCAB),
        witness_next_token([*PROMPT, 15], VOCAB),
    )


def test_forks_continue_their_parent_each_in_its_own_way(
    plan: Planner, make: Maker, first: StepPlan
) -> None:
    worker = make()
    forking = replace(first, forks=plan(1, forks=((1, 3), (1, 2))).forks)
    zero, three, two = worker.execute(forking).token_ids
    for choice, token in ((0, zero), (3, three), (2, two)):
        assert token == witness_next_token(PROMPT, VOCAB, choice)
    # The tail block 2 is shared by all three: two copies, and the last one keeps it.
    second = worker.execute(
        plan(
            2,
            replaced=((1, 1, 0), (3, 1, 4)),
            copies=((2, 0), (2, 4)),
            rows={2: (5, (two,)), 1: (5, (zero,)), 3: (5, (three,))},
        )
    )
    for choice, tokens in zip(
        (2, 0, 3), zip((two, zero, three), second.token_ids, strict=True), strict=True
    ):
        assert list(tokens) == witness_generate(PROMPT, 2, VOCAB, choice=choice)


def test_a_forgotten_copy_on_write_is_refused(plan: Planner, make: Maker, first: StepPlan) -> None:
    worker = make()
    worker.execute(replace(first, forks=plan(1, forks=((1, 2),)).forks))
    with pytest.raises(PlanRefused, match="handle 1 write to block 2, which 2 tables share"):
        worker.execute(plan(2, rows={1: (5, (1,))}))


def test_a_child_that_keeps_its_own_block_needs_no_copy(
    plan: Planner, make: Maker, first: StepPlan
) -> None:
    worker = make()
    worker.execute(replace(first, forks=plan(1, forks=((1, 2),)).forks))
    (token,) = worker.execute(plan(2, forgotten=(1,), rows={2: (5, (15,))})).token_ids
    assert token == witness_next_token([*PROMPT, 15], VOCAB, 2)


def test_a_replaced_block_may_be_granted_anew_at_once(
    plan: Planner, make: Maker, first: StepPlan
) -> None:
    worker = make()
    worker.execute(first)
    tail = (15, 16, 17, 18)
    moved = plan(2, grants={1: (2,)}, replaced=((1, 1, 0),), copies=((2, 0),), rows={1: (5, tail)})
    assert worker.execute(moved).token_ids == (witness_next_token([*PROMPT, *tail], VOCAB),)


def test_a_copy_of_the_wrong_block_shows(plan: Planner, make: Maker, first: StepPlan) -> None:
    for source, good in ((2, True), (5, False), (7, False)):
        worker = make()
        worker.execute(replace(first, forks=plan(1, forks=((1, 2),)).forks))
        moved = plan(2, replaced=((1, 1, 0),), copies=((source, 0),), rows={1: (5, (15,))})
        (token,) = worker.execute(moved).token_ids
        assert (token == witness_next_token([*PROMPT, 15], VOCAB)) is good


def test_blocks_go_out_and_come_back_elsewhere(plan: Planner, make: Maker, first: StepPlan) -> None:
    worker = make()
    worker.execute(first)
    # Handle 2 takes both blocks over in the very step that saves them.
    taken = plan(
        2,
        forgotten=(1,),
        admitted=(2,),
        grants={2: (2, 5)},
        rows={2: (0, (9,) * 6)},
        out={5: 3, 2: 0},
    )
    assert worker.execute(taken).token_ids == (witness_next_token([9] * 6, VOCAB),)
    # Back into other blocks while handle 2 goes out; a plan that computes nothing does it too.
    worker.execute(
        plan(
            3,
            forgotten=(2,),
            admitted=(3,),
            grants={3: (2, 7)},
            out={2: 1, 5: 2},
            back={3: 2, 0: 7},
        )
    )
    assert worker.execute(plan(4, rows={3: (5, (15,))})).token_ids == (
        witness_next_token([*PROMPT, 15], VOCAB),
    )
    last = plan(5, admitted=(4,), grants={4: (0, 1)}, back={1: 0, 2: 1}, rows={4: (6, (8,))})
    assert worker.execute(last).token_ids == (witness_next_token([9] * 6 + [8], VOCAB),)


@pytest.mark.parametrize(
    ("back", "good"),
    [
        ({0: 5, 1: 2}, True),
        ({1: 5, 0: 2}, False),
        ({0: 5, 3: 2}, False),
    ],
)
def test_a_wrong_host_block_shows(
    back: dict[int, int], good: bool, plan: Planner, make: Maker, first: StepPlan
) -> None:
    worker = make()
    worker.execute(first)
    worker.execute(plan(2, forgotten=(1,), out={5: 0, 2: 1}))
    returned = plan(3, admitted=(2,), grants={2: (5, 2)}, back=back, rows={2: (5, (15,))})
    (token,) = worker.execute(returned).token_ids
    assert (token == witness_next_token([*PROMPT, 15], VOCAB)) is good


def test_a_host_block_is_good_once(plan: Planner, make: Maker, first: StepPlan) -> None:
    worker = make()
    worker.execute(first)
    worker.execute(plan(2, forgotten=(1,), out={5: 0, 2: 1}))
    worker.execute(plan(3, back={0: 5, 1: 2}))
    again = plan(4, admitted=(2,), grants={2: (3, 2)}, back={0: 3}, rows={2: (5, (15,))})
    assert worker.execute(again).token_ids != (witness_next_token([*PROMPT, 15], VOCAB),)


def test_order_matters_to_the_oracle_and_tokens_spread() -> None:
    assert witness_next_token([1, 2, 3], VOCAB) != witness_next_token([3, 2, 1], VOCAB)
    tokens = [witness_next_token([index], 10) for index in range(2000)]
    assert all(150 < tokens.count(digit) < 250 for digit in range(10))
    # A fixed value: other processes and later versions must agree on it.
    assert witness_generate([1, 2, 3], 4, VOCAB) == GOLDEN


def test_the_oracle_stops_like_the_scheduler() -> None:
    full = witness_generate([1, 2], 6, VOCAB)
    assert witness_generate([1, 2], 6, VOCAB, {full[2]}) == full[:3]
    assert witness_generate([1, 2], 6, VOCAB, (full[2], full[4]), min_tokens=4) == full[:5]


def test_profile_and_pool(make: Maker, first: StepPlan) -> None:
    worker: Executor = WitnessWorker(WorkerConfig("", 64, block_size=4), VOCAB)
    assert worker.load().max_blocks == 1024
    worker.allocate(8)
    worker.execute(first)
    worker.allocate(8)  # for another engine, whose steps count from 1 again
    worker.execute(first)
    assert make(7).load().max_blocks == 7
    swapping = WitnessWorker(WorkerConfig("", 64, num_host_blocks=9), VOCAB)
    assert (make().load().max_host_blocks, swapping.load().max_host_blocks) == (0, 9)
    with pytest.raises(PlanRefused, match="call allocate first"):
        swapping.execute(first)
    with pytest.raises(ValueError, match="vocab_size is 0"):
        WitnessWorker(WorkerConfig("", 64), 0)


def test_it_loads_no_torch() -> None:
    code = "import sys, blockyard.workers.fake; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
