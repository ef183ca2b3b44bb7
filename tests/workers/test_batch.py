"""Plans into tensors, and the contradictions that are refused."""

from dataclasses import replace

import pytest
import torch

from blockyard.scheduler.plan import GUESS, Admission, BlockGrant, Fork, Replacement, StepPlan
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.batch import BatchBuilder, FlatBatch
from blockyard.workers.handle_state import PlanError

FIRST = StepPlan(
    step=1,
    forgotten=(),
    admitted=(Admission(7, SamplingParams(seed=1), 6), Admission(8, SamplingParams(seed=2), 2)),
    grants=(BlockGrant(7, (5, 2)), BlockGrant(8, (9,))),
    handles=(7, 8),
    starts=(0, 0),
    counts=(6, 2),
    samples=(False, True),
    token_ids=(10, 11, 12, 13, 14, 15, 20, 21),
)
SECOND = StepPlan(
    step=2,
    forgotten=(),
    admitted=(),
    grants=(BlockGrant(7, (0,)),),
    handles=(8, 7),
    starts=(2, 6),
    counts=(1, 3),
    samples=(True, True),
    token_ids=(22, 16, 17, 18),
)


def _builder() -> BatchBuilder:
    return BatchBuilder(num_blocks=10, block_size=4, vocab_size=30, device=torch.device("cpu"))


def _apply(builder: BatchBuilder, plan: StepPlan) -> FlatBatch:
    batch = builder.apply(plan)
    assert batch is not None
    return batch


def test_first_step() -> None:
    batch = _apply(_builder(), FIRST)
    assert batch.input_ids.tolist() == list(FIRST.token_ids)
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert batch.attention.slots.tolist() == [20, 21, 22, 23, 8, 9, 36, 37]
    assert batch.attention.counts.tolist() == [6, 2]
    assert batch.attention.lengths.tolist() == [6, 2]
    assert batch.attention.block_tables[0].tolist() == [5, 2]
    assert batch.attention.block_tables[1, 0] == 9
    assert batch.sample_tokens.tolist() == [7]
    assert batch.sample_handles == (8,)
    (row,) = batch.sample_rows
    assert (row.sampling.seed, row.position, row.produced) == (2, 2, 0)


def test_second_step_speaks_in_differences() -> None:
    builder = _builder()
    _apply(builder, FIRST)
    batch = _apply(builder, SECOND)
    assert batch.positions.tolist() == [2, 6, 7, 8]
    assert batch.attention.slots.tolist() == [38, 10, 11, 0]
    assert batch.attention.lengths.tolist() == [3, 9]
    assert batch.attention.block_tables[1].tolist() == [5, 2, 0]
    assert batch.sample_tokens.tolist() == [0, 3]
    assert [(row.position, row.produced) for row in batch.sample_rows] == [(3, 1), (9, 3)]


def test_readmission_under_a_new_handle() -> None:
    builder = _builder()
    _apply(builder, FIRST)
    plan = replace(
        SECOND,
        forgotten=(7,),
        admitted=(Admission(9, SamplingParams(seed=1), 6),),
        grants=(BlockGrant(9, (1,)),),
        handles=(9,),
        starts=(0,),
        counts=(4,),
        samples=(False,),
        token_ids=(10, 11, 12, 13),
    )
    assert _apply(builder, plan).attention.slots.tolist() == [4, 5, 6, 7]


def test_children_sample_from_their_parents_logits() -> None:
    builder = _builder()
    _apply(builder, FIRST)
    forks = (
        Fork(7, 12, SamplingParams(seed=1, choice=2), 6),
        Fork(8, 10, SamplingParams(seed=2, choice=1), 2),
        Fork(7, 11, SamplingParams(seed=1, choice=1), 6),
    )
    batch = _apply(builder, replace(SECOND, forks=forks))
    assert batch.sample_tokens.tolist() == [0, 3]
    assert batch.sample_logits is not None
    assert batch.sample_logits.tolist() == [0, 1, 1, 0, 1]
    assert batch.sample_handles == (8, 7, 12, 10, 11)
    assert [
        (row.sampling.seed, row.sampling.choice, row.position, row.produced)
        for row in batch.sample_rows
    ] == [(2, 0, 3, 1), (1, 0, 9, 3), (1, 2, 9, 3), (2, 1, 3, 1), (1, 1, 9, 3)]


def test_children_go_their_own_way() -> None:
    builder = _builder()
    _apply(builder, FIRST)
    _apply(builder, replace(SECOND, forks=(Fork(7, 9, SamplingParams(choice=1), 6),)))
    third = replace(
        SECOND,
        step=3,
        grants=(BlockGrant(9, (4,)),),
        replacements=(Replacement(9, 2, 6),),
        handles=(9, 7),
        starts=(9, 9),
        counts=(4, 1),
        token_ids=(1, 2, 3, 4, 5),
    )
    batch = _apply(builder, third)
    assert batch.sample_logits is None
    assert batch.attention.block_tables.tolist() == [[5, 2, 6, 4], [5, 2, 0, 0]]
    assert batch.attention.slots.tolist() == [25, 26, 27, 16, 1]
    # The parent's end does not touch the child.
    fourth = replace(
        third,
        step=4,
        forgotten=(7,),
        grants=(),
        replacements=(),
        handles=(9,),
        starts=(13,),
        counts=(1,),
        samples=(True,),
        token_ids=(1,),
    )
    assert _apply(builder, fourth).attention.slots.tolist() == [17]


def test_tables_grow() -> None:
    builder = BatchBuilder(num_blocks=600, block_size=1, vocab_size=30, device=torch.device("cpu"))
    plan = replace(
        FIRST,
        admitted=(Admission(7, SamplingParams(), 1),),
        grants=tuple(BlockGrant(7, tuple(range(i, i + 5))) for i in range(0, 500, 5)),
        handles=(7,),
        starts=(0,),
        counts=(500,),
        samples=(True,),
        token_ids=(1,) * 500,
    )
    assert _apply(builder, plan).attention.slots.tolist() == list(range(500))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": 1}, "step 1 comes after step 1"),
        ({"forgotten": (3,)}, "forgets handle 3, which is not known"),
        ({"forgotten": (7,)}, "names handle 7, which is not known"),
        ({"admitted": FIRST.admitted[:1]}, "admits handle 7 a second time"),
        ({"grants": (BlockGrant(3, (1,)),)}, "names handle 3, which is not known"),
        ({"grants": (BlockGrant(7, (10,)),)}, "grants block 10 to handle 7; the pool has 10"),
        ({"grants": (BlockGrant(7, (-1,)),)}, "grants block -1 to handle 7"),
        ({"grants": ()}, r"computes positions 6..8 of handle 7, whose blocks hold 8"),
        ({"starts": (2, 5)}, "handle 7 from position 5, but 6 tokens are written"),
        ({"handles": (8, 3)}, "names handle 3, which is not known"),
        ({"replacements": (Replacement(3, 0, 1),)}, "names handle 3, which is not known"),
        (
            {"replacements": (Replacement(7, 3, 1),)},
            "replaces entry 3 of handle 7, whose table has 2",
        ),
        ({"replacements": (Replacement(7, -1, 1),)}, "replaces entry -1 of handle 7"),
        (
            {"replacements": (Replacement(7, 0, 10),)},
            "gives block 10 to handle 7; the pool has 10",
        ),
        ({"forks": (Fork(7, 8, SamplingParams(), 1),)}, "forks into handle 8, which is known"),
        ({"token_ids": (22, 16, 17, 30)}, r"a token id outside 0..29"),
        ({"token_ids": (22, 16, 17, -3)}, r"a token id outside 0..29"),
    ],
)
def test_contradictions(change: dict[str, object], message: str) -> None:
    builder = _builder()
    _apply(builder, FIRST)
    with pytest.raises(PlanError, match=message):
        builder.apply(replace(SECOND, **change))  # type: ignore[arg-type]


def test_columns_that_disagree() -> None:
    with pytest.raises(AssertionError, match="counts add up to 8"):
        _builder().apply(replace(FIRST, token_ids=(1,)))


def test_a_token_to_be_guessed_where_nothing_is_guessed() -> None:
    with pytest.raises(AssertionError, match="what is to be guessed is no guess"):
        _builder().apply(replace(FIRST, token_ids=(*FIRST.token_ids[:-1], GUESS)))


def test_nothing_to_compute() -> None:
    builder = _builder()
    _apply(builder, FIRST)
    idle = StepPlan(2, (7, 8), (), (), (), (), (), (), ())
    assert builder.apply(idle) is None
    with pytest.raises(PlanError, match="names handle 7"):
        builder.apply(replace(SECOND, step=3))


def test_rules_are_told_what_is_computed_and_what_was_known() -> None:
    sampling = SamplingParams(frequency_penalty=1.0)
    plan = replace(FIRST, admitted=(Admission(7, sampling, 6, (10, 11, 12)), FIRST.admitted[1]))
    builder = _builder()
    (tokens,) = _apply(builder, plan).rule_tokens
    assert (tokens.position, tokens.token_ids) == (0, plan.token_ids[:6])
    tokens.rules.record(tokens.position, tokens.token_ids)
    batch = _apply(builder, SECOND)
    (again,) = batch.rule_tokens
    assert again.rules is tokens.rules
    assert (again.position, again.token_ids) == (6, SECOND.token_ids[1:4])
    assert [row.rules for row in batch.sample_rows] == [None, tokens.rules]


def test_prompt_rows_score_the_tokens_that_follow() -> None:
    prompt = (10, 11, 12, 13, 14, 15, 16, 17)
    scored = SamplingParams(prompt_logprobs=3)
    plan = replace(FIRST, admitted=(Admission(7, scored, 8, prompt), FIRST.admitted[1]))
    builder = _builder()
    batch = _apply(builder, plan)
    (row,) = batch.prompt_rows
    assert (row.handle, row.position, row.token_ids, row.top) == (7, 1, prompt[1:7], 3)
    assert batch.sample_tokens.tolist() == [7, 0, 1, 2, 3, 4, 5]
    batch = _apply(builder, SECOND)
    (row,) = batch.prompt_rows
    assert (row.position, row.token_ids) == (7, prompt[7:]), "the answer is no part of the prompt"
    assert batch.sample_tokens.tolist() == [0, 3, 1]


def test_a_forks_rules_are_told_what_its_parents_computed_in_the_step() -> None:
    sampling = SamplingParams(frequency_penalty=1.0)
    admitted = (Admission(7, sampling, 2, (10, 11)), FIRST.admitted[1])
    plan = replace(
        FIRST,
        admitted=admitted,
        samples=(True, True),
        forks=(Fork(7, 9, replace(sampling, choice=1), 2),),
    )
    batch = _apply(_builder(), plan)
    parent, child = batch.rule_tokens
    for told in (parent, child):
        told.rules.record(told.position, told.token_ids)
    assert child.rules is batch.sample_rows[2].rules
    assert child.rules.produced.nonzero().flatten().tolist() == [12, 13, 14, 15]
    assert torch.equal(parent.rules.produced, child.rules.produced)
