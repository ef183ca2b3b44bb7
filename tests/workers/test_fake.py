import subprocess
import sys
from dataclasses import replace

import pytest

from blockyard.scheduler.plan import Admission, BlockGrant, StepPlan
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


def make(num_blocks: int = 8) -> WitnessWorker:
    worker = WitnessWorker(WorkerConfig("", 64, block_size=4, num_blocks=num_blocks), VOCAB)
    worker.load()
    worker.allocate(num_blocks)
    return worker


def plan(
    step: int,
    *,
    forgotten: tuple[int, ...] = (),
    admitted: tuple[int, ...] = (),
    grants: dict[int, tuple[int, ...]] | None = None,
    rows: dict[int, tuple[int, tuple[int, ...]]],
) -> StepPlan:
    """A plan from rows of handle: (start, tokens), every one sampled."""
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


def test_a_block_given_to_two_requests_shows() -> None:
    worker = make()
    (token,) = worker.execute(FIRST).token_ids
    result = worker.execute(
        plan(2, admitted=(2,), grants={2: (5,)}, rows={1: (5, (token,)), 2: (0, (10, 99))})
    )
    assert result.token_ids[0] != witness_next_token([10, 11, 12, 13, 14, token], VOCAB)


def test_blocks_in_another_order_show() -> None:
    worker = make()
    worker.execute(FIRST)
    worker._rows[1].block_ids.reverse()
    (following,) = worker.execute(plan(2, rows={1: (5, (15,))})).token_ids
    assert following != witness_next_token([10, 11, 12, 13, 14, 15], VOCAB)


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


def test_profile_and_pool() -> None:
    worker: Executor = WitnessWorker(WorkerConfig("", 64, block_size=4), VOCAB)
    assert worker.load().max_blocks == 1024
    worker.allocate(2)
    with pytest.raises(PlanRefused, match="made already"):
        worker.allocate(2)
    assert make(7).load().max_blocks == 7
    with pytest.raises(ValueError, match="vocab_size is 0"):
        WitnessWorker(WorkerConfig("", 64), 0)


def test_it_loads_no_torch() -> None:
    code = "import sys, blockyard.workers.fake; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
