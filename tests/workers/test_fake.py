import subprocess
import sys
from dataclasses import replace

import pytest

from blockyard.scheduler.plan import (
    Admission,
    BlockCopy,
    BlockGrant,
    Fork,
    Replacement,
    StepPlan,
)
from blockyard.scheduler.sampling import SamplingParams
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


def make(num_blocks: int = 8, num_host_blocks: int = 4) -> WitnessWorker:
    worker = WitnessWorker(WorkerConfig("", 64, block_size=4, num_blocks=num_blocks), VOCAB)
    worker.load()
    worker.allocate(num_blocks, num_host_blocks)
    return worker


def plan(
    step: int,
    *,
    forgotten: tuple[int, ...] = (),
    admitted: tuple[int, ...] = (),
    grants: dict[int, tuple[int, ...]] | None = None,
    rows: dict[int, tuple[int, tuple[int, ...]]] | None = None,
    forks: tuple[tuple[int, int], ...] = (),
    replaced: tuple[tuple[int, int, int], ...] = (),
    out: dict[int, int] | None = None,
    copies: tuple[tuple[int, int], ...] = (),
    back: dict[int, int] | None = None,
) -> StepPlan:
    """A plan from rows of handle: (start, tokens), every one sampled.

    `forks` are (parent, child), the child's number being its choice; moves are source:
    destination, `replaced` handle, index, block.
    """
    rows = rows or {}
    return StepPlan(
        step=step,
        forgotten=forgotten,
        admitted=tuple(Admission(handle, SamplingParams(), 1) for handle in admitted),
        grants=tuple(BlockGrant(handle, blocks) for handle, blocks in (grants or {}).items()),
        handles=tuple(rows),
        starts=tuple(start for start, _ in rows.values()),
        counts=tuple(len(tokens) for _, tokens in rows.values()),
        samples=(True,) * len(rows),
        token_ids=tuple(token for _, tokens in rows.values() for token in tokens),
        forks=tuple(
            Fork(parent, child, SamplingParams(choice=child), 1) for parent, child in forks
        ),
        replacements=tuple(Replacement(*entry) for entry in replaced),
        swap_outs=tuple(BlockCopy(*move) for move in (out or {}).items()),
        copies=tuple(BlockCopy(*move) for move in copies),
        swap_ins=tuple(BlockCopy(*move) for move in (back or {}).items()),
    )


FIRST = plan(1, admitted=(1,), grants={1: (5, 2)}, rows={1: (0, (10, 11, 12, 13, 14))})


def test_it_answers_what_the_oracle_says() -> None:
    worker = make()
    prompt = [10, 11, 12, 13, 14]
    (token,) = worker.execute(FIRST).token_ids
    assert token == witness_next_token(prompt, VOCAB)
    (following,) = worker.execute(plan(2, rows={1: (5, (token,))})).token_ids
    assert [token, following] == witness_generate(prompt, 2, VOCAB)


def test_chunks_and_neighbours_make_no_difference() -> None:
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
def test_any_slot_that_was_overwritten_shows(slot: int) -> None:
    worker = make()
    (token,) = worker.execute(FIRST).token_ids
    worker._slots[slot] ^= 1
    (following,) = worker.execute(plan(2, rows={1: (5, (token,))})).token_ids
    assert following != witness_next_token([10, 11, 12, 13, 14, token], VOCAB)


def test_a_block_given_to_two_requests_is_refused_when_written() -> None:
    worker = make()
    (token,) = worker.execute(FIRST).token_ids
    with pytest.raises(PlanRefused, match="handle 2 write to block 5, which 2 tables share"):
        worker.execute(
            plan(2, admitted=(2,), grants={2: (5,)}, rows={1: (5, (token,)), 2: (0, (10, 99))})
        )


def test_a_block_reused_while_it_is_still_read_shows() -> None:
    worker = make()
    worker.execute(FIRST)
    # A prefix published too early: handle 2 counts on block 3, which nobody has filled.
    early = plan(2, admitted=(2,), grants={2: (3, 1)}, rows={2: (4, (14,))})
    assert worker.execute(early).token_ids != (witness_next_token(PROMPT, VOCAB),)


def test_blocks_in_another_order_show() -> None:
    worker = make()
    worker.execute(FIRST)
    swapped = plan(2, forgotten=(1,), admitted=(2,), grants={2: (2, 5)}, rows={2: (5, (15,))})
    assert worker.execute(swapped).token_ids != (witness_next_token([*PROMPT, 15], VOCAB),)


def test_blocks_filled_by_others_are_read_and_shared() -> None:
    worker = make()
    worker.execute(FIRST)
    tail = (77, 78)
    result = worker.execute(
        plan(2, admitted=(2,), grants={2: (5, 0)}, rows={2: (4, tail), 1: (5, (15,))})
    )
    assert result.token_ids == (
        witness_next_token([*PROMPT[:4], *tail], VOCAB),
        witness_next_token([*PROMPT, 15], VOCAB),
    )


def test_forks_continue_their_parent_each_in_its_own_way() -> None:
    worker = make()
    first = worker.execute(replace(FIRST, forks=plan(1, forks=((1, 3), (1, 2))).forks))
    assert first.token_ids == tuple(witness_next_token(PROMPT, VOCAB, c) for c in (0, 3, 2))
    zero, three, two = first.token_ids
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


def test_a_forgotten_copy_on_write_is_refused() -> None:
    worker = make()
    worker.execute(replace(FIRST, forks=plan(1, forks=((1, 2),)).forks))
    with pytest.raises(PlanRefused, match="handle 1 write to block 2, which 2 tables share"):
        worker.execute(plan(2, rows={1: (5, (1,))}))


def test_a_child_that_keeps_its_own_block_needs_no_copy() -> None:
    worker = make()
    worker.execute(replace(FIRST, forks=plan(1, forks=((1, 2),)).forks))
    (token,) = worker.execute(plan(2, forgotten=(1,), rows={2: (5, (15,))})).token_ids
    assert token == witness_next_token([*PROMPT, 15], VOCAB, 2)


def test_a_copy_of_the_wrong_block_shows() -> None:
    for source, good in ((2, True), (5, False), (7, False)):
        worker = make()
        worker.execute(replace(FIRST, forks=plan(1, forks=((1, 2),)).forks))
        moved = plan(2, replaced=((1, 1, 0),), copies=((source, 0),), rows={1: (5, (15,))})
        (token,) = worker.execute(moved).token_ids
        assert (token == witness_next_token([*PROMPT, 15], VOCAB)) is good


def test_blocks_go_out_and_come_back_elsewhere() -> None:
    worker = make()
    worker.execute(FIRST)
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
    ("third", "good"),
    [
        (plan(3, back={0: 5, 1: 2}), True),
        (plan(3, back={1: 5, 0: 2}), False),
        (plan(3, back={0: 5, 3: 2}), False),
        (plan(3, back={0: 5}), False),  # block 2 was left behind, and is poisoned
    ],
)
def test_a_wrong_host_block_shows(third: StepPlan, good: bool) -> None:
    worker = make()
    worker.execute(FIRST)
    worker.execute(plan(2, forgotten=(1,), out={5: 0, 2: 1}))
    worker.execute(replace(third, admitted=(Admission(2, SamplingParams(), 1),)))
    (token,) = worker.execute(plan(4, grants={2: (5, 2)}, rows={2: (5, (15,))})).token_ids
    assert (token == witness_next_token([*PROMPT, 15], VOCAB)) is good


def test_a_host_block_is_good_once() -> None:
    worker = make()
    worker.execute(FIRST)
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


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (plan(2, rows={9: (0, (1,))}), "handle 9, which is unknown"),
        (plan(2, grants={9: (1,)}, rows={1: (5, (1,))}), "handle 9, which is unknown"),
        (plan(2, forgotten=(9,), rows={1: (5, (1,))}), "forgets handle 9"),
        (plan(2, forgotten=(1,), rows={1: (5, (1,))}), "handle 1, which is unknown"),
        (plan(2, admitted=(1,), rows={1: (0, (1,))}), "admits handle 1 again"),
        (plan(2, grants={1: (8,)}, rows={1: (5, (1,))}), "block 8, the pool has 8"),
        (plan(2, grants={1: (-1,)}, rows={1: (5, (1,))}), "block -1"),
        (plan(2, grants={1: (5,)}, rows={1: (5, (1,))}), "block 5 to handle 1 twice"),
        (plan(2, rows={1: (4, (1,))}), "at 4, it has 5 tokens"),
        (plan(2, rows={1: (6, (1,))}), "at 6, it has 5 tokens"),
        (plan(2, rows={1: (5, (1, 2, 3, 4))}), "to 9 tokens, its blocks hold 8"),
        (plan(2, rows={1: (5, (VOCAB,))}), "token outside 0 to 49999"),
        (plan(2, admitted=(2,), grants={2: (3,)}, rows={2: (-1, (1,))}), "handle 2 at -1"),
        (plan(2, admitted=(2,), grants={2: (3,)}, rows={2: (4, (1,))}), "its blocks hold 4"),
        (plan(2, replaced=((9, 0, 3),)), "handle 9, which is unknown"),
        (plan(2, replaced=((1, 2, 3),)), "entry 2 of handle 1, whose table has 2"),
        (plan(2, replaced=((1, -1, 3),)), "entry -1 of handle 1"),
        (plan(2, replaced=((1, 0, 8),)), "block 8, the pool has 8"),
        (plan(2, replaced=((1, 0, 2),)), "block 2 in the table of handle 1 twice"),
        (plan(2, out={8: 0}), "block 8, the pool has 8"),
        (plan(2, out={5: 4}), "host block 4, the host pool has 4"),
        (plan(2, out={5: 1, 2: 1}), "fills host block 1 2 times"),
        (plan(2, copies=((-1, 3),)), "block -1"),
        (plan(2, copies=((5, 8),)), "block 8, the pool has 8"),
        (plan(2, copies=((5, 3), (2, 3))), "fills block 3 2 times"),
        (plan(2, copies=((5, 3), (3, 4))), "copies block 3 and copies another over it"),
        (plan(2, copies=((5, 2),)), "over block 2, which a table holds filled"),
        (plan(2, back={-1: 3}), "host block -1"),
        (plan(2, back={0: 8}), "block 8, the pool has 8"),
        (plan(2, back={0: 3, 1: 3}), "fills block 3 2 times"),
        (plan(2, copies=((5, 3),), back={1: 3}), "fills block 3 2 times"),
        (plan(2, back={0: 5}), "over block 5, which a table holds filled"),
        (plan(2, rows={1: (5, (1,))}, forks=((1, 1),)), "forks into handle 1 again"),
        (plan(2, rows={1: (5, (1,))}, forks=((1, 2), (1, 2))), "forks twice"),
        (
            plan(2, admitted=(2,), rows={1: (5, (1,))}, forks=((1, 2),)),
            "forks into handle 2 again",
        ),
        (plan(3, rows={1: (5, (1,))}), "step 3 came after step 1"),
        (plan(1, rows={1: (5, (1,))}), "step 1 came after step 1"),
    ],
)
def test_plans_that_break_the_protocol_are_refused(broken: StepPlan, message: str) -> None:
    worker = make()
    worker.execute(FIRST)
    with pytest.raises(PlanRefused, match=message):
        worker.execute(broken)


def test_a_handle_never_comes_back_and_columns_must_agree() -> None:
    worker = make()
    worker.execute(FIRST)
    again = plan(2, forgotten=(1,), admitted=(1,), grants={1: (5,)}, rows={1: (0, (1,))})
    with pytest.raises(PlanRefused, match="admits handle 1 again"):
        worker.execute(again)
    with pytest.raises(AssertionError, match="counts add up"):
        worker.execute(replace(FIRST, step=2, token_ids=(1,)))
    with pytest.raises(AssertionError, match="forks from 9, which does not sample"):
        worker.execute(plan(2, rows={1: (5, (1,))}, forks=((9, 2),)))
    silent = replace(plan(2, rows={1: (5, (1,))}, forks=((1, 2),)), samples=(False,))
    with pytest.raises(AssertionError, match="forks from 1, which does not sample"):
        worker.execute(silent)


def test_profile_and_pool() -> None:
    worker: Executor = WitnessWorker(WorkerConfig("", 64, block_size=4), VOCAB)
    assert worker.load().max_blocks == 1024
    worker.allocate(2)
    with pytest.raises(PlanRefused, match="made already"):
        worker.allocate(2)
    assert make(7).load().max_blocks == 7
    swapping = WitnessWorker(WorkerConfig("", 64, num_host_blocks=9), VOCAB)
    assert (make().load().max_host_blocks, swapping.load().max_host_blocks) == (0, 9)
    with pytest.raises(PlanRefused, match="call allocate first"):
        swapping.execute(FIRST)
    with pytest.raises(ValueError, match="vocab_size is 0"):
        WitnessWorker(WorkerConfig("", 64), 0)


def test_it_loads_no_torch() -> None:
    code = "import sys, blockyard.workers.fake; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
