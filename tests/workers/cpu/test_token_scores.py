"""Penalties and log probabilities by native code against plain torch."""

import pytest
import torch

from blockyard.cuda.reference_sampling import score_tokens
from blockyard.cuda.sampling import RowSampling
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.cpu.library import NativePool
from blockyard.workers.cpu.token_kernels import NativeTokens
from blockyard.workers.logit_rules import penalise, rules_for

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def native_tokens(native_pool: NativePool) -> NativeTokens:
    return NativeTokens(native_pool)


@pytest.mark.parametrize("vocabulary", [5, 64, 4097, 9003])
def test_penalties_are_those_of_plain_torch_bit_by_bit(
    native_tokens: NativeTokens, vocabulary: int
) -> None:
    draw = torch.Generator().manual_seed(vocabulary)
    scores = torch.randn(7, vocabulary, generator=draw) * 3
    scores[4, ::3] = float("-inf")
    numbers = [(1.3, 0.0, 0.0), (1.0, 0.37, 0.0), (0.7, -0.21, 0.9), (1.1, 0.3, -1.7)]
    rules = []
    for repetition, frequency, presence in numbers:
        known = torch.randint(0, vocabulary, (900,), generator=draw).tolist()
        sampling = SamplingParams(
            repetition_penalty=repetition,
            frequency_penalty=frequency,
            presence_penalty=presence,
        )
        found = rules_for(sampling, 300, known, vocabulary, CPU)
        assert found is not None
        rules.append(found)
    at = [5, 0, 4, 2]
    expected = scores.clone()
    expected[at] = penalise(scores[at], rules)
    native_tokens.penalise(
        scores, [rule.penalties(row) for row, rule in zip(at, rules, strict=True)]
    )
    assert torch.equal(scores, expected)
    assert not torch.equal(scores[0], scores[1])


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("vocabulary", [40, 3001, 20_000])
def test_log_probabilities_ranks_and_the_likeliest(
    native_tokens: NativeTokens, vocabulary: int, ties: bool
) -> None:
    logits = torch.randn(6, vocabulary, generator=torch.Generator().manual_seed(1)) * 4 + 20
    if ties:
        logits = (logits / 3).round() * 3
    logits[2, ::2] = float("-inf")
    logits[3] *= 1e6  # what is left of a sum does not vanish beside the highest
    rows = [0, 2, 2, 5, 3, 1]
    tokens = [0, 1, vocabulary - 1, 7, int(logits[3].argmax()), 13]
    tops = [20, 0, 5, 1, 2, 20]
    found = native_tokens.score(logits, rows, tokens, tops)
    expected = score_tokens(logits, rows, tokens, tops)
    for index, top in enumerate(tops):
        asked = slice(0, 1 + top)
        assert found.ids[index, asked].tolist() == expected.ids[index, asked].tolist()
        torch.testing.assert_close(
            found.logprobs[index, asked], expected.logprobs[index, asked], atol=1e-6, rtol=1e-6
        )


def test_a_row_with_no_finite_sum_has_no_log_probabilities(native_tokens: NativeTokens) -> None:
    logits = torch.zeros(3, 50)
    logits[0, 7], logits[1, 8], logits[2] = float("nan"), float("inf"), float("-inf")
    found = native_tokens.score(logits, [0, 1, 2], [3, 3, 3], [4, 4, 4])
    assert found.logprobs.isnan().all()
    assert ((found.ids[:, 1:] >= 0) & (found.ids[:, 1:] < 50)).all()


@pytest.mark.parametrize("vocabulary", [1, 5, 50, 70, 4130])
def test_the_likeliest_of_a_broken_row_are_of_the_vocabulary(
    native_tokens: NativeTokens, vocabulary: int
) -> None:
    """Nor are they what fills up the last strip of its scores, which are numbers, as NaN is not."""
    logits = torch.full((2, vocabulary), float("nan"))
    logits[1, vocabulary // 2] = float("-inf")
    top = min(20, vocabulary)
    found = native_tokens.score(logits, [0, 1], [0, 0], [top, top])
    assert ((found.ids[:, 1:] >= 0) & (found.ids[:, 1:] < vocabulary)).all()


@pytest.mark.parametrize("vocabulary", [3, 64, 4097])
def test_what_lies_behind_a_broken_row_is_not_read(
    native_tokens: NativeTokens, vocabulary: int
) -> None:
    """No score is the highest of a row of NaN, not even the next number in memory."""
    logits = torch.full((2, vocabulary + 64), 777.0)[:, :vocabulary]
    logits.fill_(float("nan"))
    found = native_tokens.choose(logits, [RowSampling(), RowSampling(0.8, top_k=2)])
    assert found.failed.tolist() == [1, 1] and found.tokens.tolist() == [0, 0]
    assert found.scores.tolist() == [float("-inf")] * 2
