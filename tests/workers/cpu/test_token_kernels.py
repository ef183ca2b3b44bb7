"""Tokens chosen natively are those of plain torch, for any parameters and any threads."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockyard.cuda.reference_sampling import kept_tokens
from blockyard.cuda.sampling import RowSampling, best_of_parts
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.cpu.attention import NativeBackend
from blockyard.workers.cpu.compiler import INSTRUCTION_SETS, NativeUnavailable
from blockyard.workers.cpu.library import NativePool, load_library
from blockyard.workers.cpu.token_kernels import NativeTokens
from blockyard.workers.gumbel import gumbel_noise
from blockyard.workers.logit_rules import rules_for
from blockyard.workers.sampler import SampleRow, row_for_kernel, sample

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="session")
def native_tokens(native_pool: NativePool) -> NativeTokens:
    """What an engine on a CPU is given."""
    found = NativeBackend(native_pool).sampler
    assert isinstance(found, NativeTokens)
    return found


@pytest.fixture(scope="session")
def all_tokens() -> list[NativeTokens]:
    """One, two and five threads, with every instruction set that there is."""
    found = []
    for instructions in INSTRUCTION_SETS:
        try:
            library = load_library(instructions.name)
        except NativeUnavailable:
            continue
        found += [NativeTokens(library.pool(threads)) for threads in (1, 2, 5)]
    if not found:
        pytest.skip("no native code here")
    return found


def some_logits(chance: random.Random, rows: int, vocabulary: int) -> torch.Tensor:
    """Of many shapes: flat, steep, huge; with equals, with tokens that are masked."""
    draw = torch.Generator().manual_seed(chance.getrandbits(40))
    logits = torch.randn(rows, vocabulary, generator=draw)
    logits *= chance.choice((0.0, 0.1, 1.0, 3.0, 8.0, 1e4, 1e30))
    if chance.random() < 0.4:
        logits = (logits * 2).round() / 2
    if chance.random() < 0.4:
        masked = torch.rand(rows, vocabulary, generator=draw) < chance.choice((0.1, 0.9, 0.99))
        logits[masked] = float("-inf")
    if chance.random() < 0.1:
        poison = float(chance.choice(("nan", "inf")))
        logits[chance.randrange(rows), chance.randrange(vocabulary)] = poison
    return logits


def some_row(chance: random.Random, vocabulary: int) -> SampleRow:
    def either(*values: Any) -> Any:
        return chance.choice(values)

    sampling = SamplingParams(
        temperature=either(0.0, 0.7, 1.0, 1.0, 1.9, 2e-5, 1e-3),
        top_k=either(0, 0, 0, 1, 7, 50, 1000, 10**6),
        top_p=either(1.0, 1.0, 0.9, 0.5, 0.3, 0.999, 1e-6, 1.0 - chance.random()),
        min_p=either(0.0, 0.0, 0.05, 0.5, 1.0, 1e-6),
        typical_p=either(*[1.0] * 9, 0.8),
        seed=chance.getrandbits(64),
        choice=either(0, 3),
        repetition_penalty=either(1.0, 1.0, 1.0, 1.3),
        frequency_penalty=either(0.0, 0.0, 0.0, 0.7),
        presence_penalty=either(0.0, 0.0, 0.0, -0.4),
    )
    known = [chance.randrange(vocabulary) for _ in range(60)]
    rules = rules_for(sampling, 20, known, vocabulary, CPU)
    return SampleRow(sampling, chance.randrange(4000), 40, rules)


@FUZZ
@given(
    seed=st.integers(0, 2**40),
    rows=st.integers(1, 33),
    vocabulary=st.one_of(st.integers(1, 200), st.sampled_from([1003, 4096, 4099, 9001, 20_011])),
)
def test_tokens_are_those_of_plain_torch(
    native_tokens: NativeTokens, seed: int, rows: int, vocabulary: int
) -> None:
    chance = random.Random(seed)
    rows = min(rows, max(1, 60_000 // vocabulary))
    logits = some_logits(chance, rows, vocabulary)
    asked = [some_row(chance, vocabulary) for _ in range(rows)]
    before = logits.clone()
    found, expected = sample(logits, asked, native_tokens), sample(logits, asked)
    assert (found.failed, found.emptied) == (expected.failed, expected.emptied)
    for index, row in enumerate(asked):
        if index not in expected.failed:
            assert found.token_ids[index] == expected.token_ids[index], (index, row)
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())


def test_a_row_depends_on_nothing_but_itself(all_tokens: list[NativeTokens]) -> None:
    chance = random.Random(5)
    for vocabulary in (37, 5003, 13_000):
        logits = torch.cat([some_logits(chance, 3, vocabulary) for _ in range(8)])
        rows = [row_for_kernel(some_row(chance, vocabulary)) for _ in range(len(logits))]
        first = all_tokens[0].choose(logits, rows)
        for kernels in all_tokens:
            together = kernels.choose(logits, rows)
            assert torch.equal(together.tokens, first.tokens)
            assert torch.equal(together.failed, first.failed)
            assert torch.equal(together.scores.nan_to_num(), first.scores.nan_to_num())
            for index, row in enumerate(rows):
                alone = kernels.choose(logits[index : index + 1], [row])
                assert int(alone.tokens[0]) == int(first.tokens[index]), (index, row)
                assert int(alone.failed[0]) or alone.scores[0] == first.scores[index]


@pytest.mark.parametrize("vocabulary", [64, 1003, 20_000])
def test_near_ties_are_settled_in_float64(native_tokens: NativeTokens, vocabulary: int) -> None:
    """Scores are what the noise leaves of 10: all sums are within float32's rounding of it."""
    rows, noise = some_noise(12, vocabulary)
    logits = (10.0 - noise).float()
    exact = (logits + noise).max(dim=-1)
    assert float((logits + noise).amin() - exact.values.amax()) > -1e-5
    found = native_tokens.choose(logits, rows)
    assert found.tokens.tolist() == exact.indices.tolist()
    torch.testing.assert_close(found.scores, exact.values, atol=1e-14, rtol=0)
    narrowed = [replace(row, top_k=vocabulary - 1) for row in rows]
    assert native_tokens.choose(logits, narrowed).tokens.tolist() == [
        int((logits[row] + noise[row]).masked_fill(~kept_tokens(logits[row], each), -1e9).argmax())
        for row, each in enumerate(narrowed)
    ]


@pytest.mark.parametrize("least_noise", [5.0, 9.0])
def test_near_ties_of_large_scores_are_too(native_tokens: NativeTokens, least_noise: float) -> None:
    """There float32 rounds the highest sum by more than tokens with much noise differ by."""
    rows, noise = some_noise(40, 20_000)
    logits = (1e5 - noise).float().masked_fill(noise < least_noise, float("-inf"))
    found = native_tokens.choose(logits, rows)
    assert found.tokens.tolist() == (logits + noise).argmax(dim=-1).tolist()


def test_of_equal_sums_the_lowest_id_is_taken(native_tokens: NativeTokens) -> None:
    """Beside scores so large noise is nothing."""
    logits = torch.full((3, 9000), -1.0)
    equals = ([3, 4, 8000], [4095, 4097], [17, 8999])
    for row, ids in enumerate(equals):
        logits[row, ids] = 1e20
    for kind in (RowSampling(), RowSampling(1.0), RowSampling(0.5, 5, 0.9)):
        found = native_tokens.choose(logits, [kind] * 3)
        assert found.tokens.tolist() == [ids[0] for ids in equals]


def some_noise(
    rows: int, vocabulary: int, first: int = 0
) -> tuple[list[RowSampling], torch.Tensor]:
    """Rows that are drawn at temperature 1, and their noise."""
    keys = [(2**40 + row, row % 2, 7 * row) for row in range(first, first + rows)]
    drawn = [RowSampling(1.0, seed=s, choice=c, position=p) for s, c, p in keys]
    return drawn, gumbel_noise(keys, vocabulary, CPU)


@pytest.mark.parametrize("tail", [-9.0, -60.0, float("-inf")])
@pytest.mark.parametrize("count", [1, 20, 333])
def test_equals_on_the_line_are_counted_exactly(
    native_tokens: NativeTokens, count: int, tail: float
) -> None:
    """Noise that is the highest on the first token that must go, and on the last that stays."""
    equals, vocabulary = 1000, 6000
    logits = torch.full((1, vocabulary), tail)
    at = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(2))[:equals]
    at = at.sort().values
    logits[0, at] = 4.0
    lines: list[dict[str, Any]] = [{"top_k": count}]
    if tail < -20:  # the others weigh nothing
        lines.append({"top_p": count / equals})
    for line in lines:
        for wanted in (count - 1, count):
            seeds = (seed for seed in range(10**6) if _highest(seed, at, count) == wanted)
            sampling = [SamplingParams(seed=next(seeds), **line) for _ in range(3)]
            rows = [SampleRow(each, 9, 0) for each in sampling]
            found = sample(logits.expand(3, -1), rows, native_tokens).token_ids
            assert found == sample(logits.expand(3, -1), rows).token_ids
            assert all(token in at[:count] for token in found)
            assert (wanted == count) or found == (int(at[wanted]),) * 3


def _highest(seed: int, at: torch.Tensor, count: int) -> int:
    """Which of the first `count + 1` equals has the highest noise."""
    noise = gumbel_noise([(seed, 0, 9)], int(at[count]) + 1, CPU)[0]
    return int(noise[at[: count + 1]].argmax())


LINES: list[tuple[float, float, dict[str, Any]]] = [
    (0.3, 0.0, {"top_p": 0.2}),
    (0.3, 0.0, {"top_p": 0.9}),
    (1.0, 0.0, {"top_p": 0.7}),
    (0.3, 7.4, {"top_p": 0.8}),
    (0.3, 0.0, {"top_k": 200}),
    (0.3, 0.0, {"min_p": 0.5}),
    (0.5, 0.0, {"top_k": 900, "top_p": 0.6}),
    (0.5, 0.0, {"top_k": 900, "top_p": 0.8, "min_p": 0.3}),
]


@pytest.mark.parametrize(("spread", "lead", "case"), LINES)
def test_the_line_is_drawn_behind_the_right_token(
    native_tokens: NativeTokens, spread: float, lead: float, case: dict[str, Any]
) -> None:
    """Drawn with noise that makes the last token that stays the best, or the first that must go."""
    vocabulary = 1203
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(4)) * spread
    logits[77] += lead
    kept = kept_tokens(logits.double(), RowSampling(1.0, **case))
    order = logits.sort(descending=True).indices
    last, first_out = order[int(kept.sum()) - 1], order[int(kept.sum())]
    noise = torch.cat([some_noise(400, vocabulary, first)[1] for first in range(0, 6000, 400)])
    beside = (logits + noise).masked_fill(~kept, float("-inf"))
    beside[:, first_out] = logits[first_out] + noise[:, first_out]
    best = beside.argmax(dim=-1)
    told = [int(row) for row in range(6000) if int(best[row]) in (int(last), int(first_out))]
    assert {int(best[row]) for row in told} == {int(last), int(first_out)}
    rows = [some_noise(1, 1, row)[0][0] for row in told]
    beside[:, first_out] = float("-inf")
    found = native_tokens.choose(
        logits.expand(len(told), -1).contiguous(), [replace(row, **case) for row in rows]
    )
    assert found.tokens.tolist() == beside[told].argmax(dim=-1).tolist()


def test_temperatures_that_make_scores_infinite(native_tokens: NativeTokens) -> None:
    logits = torch.tensor(
        [[1e30, 2e36, -1e30, 3e36, 1e36], [-3e38, -2e38, float("-inf"), -2e38, -3e38]]
    )
    rows = [SampleRow(SamplingParams(temperature=2e-5, seed=3), 5, 0)] * 2
    found = sample(logits, rows, native_tokens)
    assert found.failed == ()
    assert found.token_ids[0] == sample(logits, rows).token_ids[0] == 1
    assert found.token_ids[1] == 1, "the likeliest, and none that is masked"


@pytest.mark.parametrize("line", [{"top_k": 1}, {"top_p": 0.1}])
def test_scores_that_division_makes_equal_are_equals(
    native_tokens: NativeTokens, line: dict[str, Any]
) -> None:
    """The higher of two neighbours has the higher id; once they are divided neither is higher."""
    pair = torch.tensor([[1.95 - 2**-23, 1.95]])
    assert pair[0, 0] < pair[0, 1] and pair[0, 0] / 1.9 == pair[0, 1] / 1.9
    logits = torch.nn.functional.pad(pair, (7, 300), value=-5.0).expand(40, -1)
    sampling = [SamplingParams(temperature=1.9, seed=seed, **line) for seed in range(40)]
    found = sample(logits, [SampleRow(each, 3, 0) for each in sampling], native_tokens)
    assert set(found.token_ids) == {7}


def test_parts_of_a_vocabulary_together_choose_as_the_whole(native_tokens: NativeTokens) -> None:
    vocabulary = 9002
    rows = [RowSampling(), *(RowSampling(0.9, seed=seed, position=3) for seed in range(11))]
    noise = gumbel_noise([(row.seed, 0, 3) for row in rows], vocabulary, CPU)
    logits = (5.0 - noise).float() * 0.9  # near ties within parts and between them
    whole = native_tokens.choose(logits, rows)
    parts = [
        native_tokens.choose(logits[:, begin:end], rows, begin)
        for begin, end in ((0, 4512), (4512, 4516), (4516, vocabulary))
    ]
    best = best_of_parts(parts)
    assert torch.equal(best.tokens, whole.tokens)
    assert torch.equal(best.scores, whole.scores)


def test_what_cannot_be_chosen_is_refused(native_tokens: NativeTokens) -> None:
    logits = torch.zeros(1, 8)
    with pytest.raises(ValueError, match="begins at 2"):
        native_tokens.choose(logits, [RowSampling()], 2)
    with pytest.raises(ValueError, match="does not tell"):
        native_tokens.choose(logits, [RowSampling(1.0, top_k=2)], 4)
    assert native_tokens.choose(logits[:0], []).tokens.shape == (0,)
