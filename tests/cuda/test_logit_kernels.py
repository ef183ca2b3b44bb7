"""Penalties and log probabilities by kernel, in the emulation, against float64."""

from collections.abc import Callable

import pytest
import torch

from blockyard.cuda import reference_sampling
from blockyard.cuda.emulator.build import EmulatedLibrary
from blockyard.cuda.launch import KernelLibrary
from blockyard.cuda.logprobs import MOST_TOP, ScoredTokens, score_tokens
from blockyard.cuda.penalties import RowPenalties, penalise
from blockyard.cuda.sampling import RowSampling, best_of_parts, choose_tokens


def logits_of(rows: int, vocabulary: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    random = torch.Generator().manual_seed(vocabulary)
    return (torch.randn(rows, vocabulary, generator=random) * 3).to(dtype)


def check_scores(
    library: KernelLibrary, logits: torch.Tensor, rows: list[int], tokens: list[int], top: int
) -> None:
    tops = [max(0, top - index) for index in range(len(rows))]
    found = score_tokens(library, logits, rows, tokens, tops)
    expected = reference_sampling.score_tokens(logits, rows, tokens, tops)
    for index, asked in enumerate(tops):
        assert found.ids[index, : 1 + asked].tolist() == expected.ids[index, : 1 + asked].tolist()
        torch.testing.assert_close(
            found.logprobs[index, : 1 + asked],
            expected.logprobs[index, : 1 + asked],
            atol=2e-6,
            rtol=1e-6,
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("vocabulary", "top"), [(1, 1), (20, 20), (777, 5), (2051, MOST_TOP)])
def test_logprobs_ranks_and_the_likeliest(
    emulated: EmulatedLibrary, vocabulary: int, top: int, dtype: torch.dtype
) -> None:
    logits = logits_of(3, vocabulary, dtype)
    rows, tokens = [2, 0, 0, 1], [vocabulary - 1, 0, vocabulary // 2, vocabulary // 3]
    check_scores(emulated, logits, rows, tokens, top)


def test_equals_come_in_order_of_ids(emulated: EmulatedLibrary) -> None:
    logits = logits_of(1, 1600).clamp(max=0.0)
    logits[0, [700, 3, 1400]] = 2.0
    check_scores(emulated, logits, [0, 0, 0], [1400, 5, 3], 20)


def test_what_cannot_be_chosen_has_no_probability(emulated: EmulatedLibrary) -> None:
    logits = torch.full((2, 40), float("-inf"))
    logits[0, 7], logits[0, 30] = 1.0, 1.0
    logits[1] = float("nan")
    found = score_tokens(emulated, logits, [0, 0, 1], [30, 2, 0], [3, 0, 0])
    assert found.logprobs[:2, 0].tolist() == pytest.approx([-0.6931472, float("-inf")])
    assert found.ids[0].tolist() == [1, 7, 30, 0]
    assert found.logprobs[0, 3] == float("-inf")
    assert bool(found.logprobs[2, 0].isnan())


def test_more_than_there_is_room_for_is_refused(emulated: EmulatedLibrary) -> None:
    with pytest.raises(ValueError, match="65 likeliest of 100 tokens"):
        score_tokens(emulated, logits_of(1, 100), [0], [0], [65])
    assert score_tokens(emulated, logits_of(1, 100), [], [], []).ids.shape == (0, 1)


@pytest.mark.parametrize("fault", [31, 32], ids=["no barrier", "in order of finding"])
def test_planted_faults_in_logprobs_show(
    planted: Callable[[int], KernelLibrary], fault: int
) -> None:
    with pytest.raises(AssertionError):
        check_scores(planted(fault), logits_of(4, 777), [0, 1, 2, 3], [1, 2, 3, 4], 20)


def penalties(vocabulary: int) -> list[RowPenalties]:
    random = torch.Generator().manual_seed(7)
    produced = torch.randint(-3, 4, (3, vocabulary), generator=random).clamp(min=0).float()
    in_prompt = torch.rand(3, vocabulary, generator=random) < 0.3
    numbers = [(1.0, 0.5, -0.25), (1.3, 0.0, 0.0), (0.8, -1.0, 2.0)]
    return [
        RowPenalties(row, *number, in_prompt[index], produced[index])
        for index, (row, number) in enumerate(zip((3, 0, 2), numbers, strict=True))
    ]


@pytest.mark.parametrize("vocabulary", [1, 257, 5001])
def test_penalties(emulated: EmulatedLibrary, vocabulary: int) -> None:
    scores = logits_of(4, vocabulary)
    expected = scores.double()
    reference_sampling.penalise(expected, penalties(vocabulary))
    before = scores[1].clone()
    penalise(emulated, scores, penalties(vocabulary))
    assert torch.equal(scores[1], before), "this row has no penalties"
    torch.testing.assert_close(scores.double(), expected, atol=1e-5, rtol=1e-6)


def test_penalties_of_another_vocabulary_are_refused(emulated: EmulatedLibrary) -> None:
    with pytest.raises(ValueError, match="of 5 and 5 tokens; the scores are of 6"):
        penalise(emulated, torch.zeros(4, 6), penalties(5))
    with pytest.raises(ValueError, match="bfloat16"):
        penalise(emulated, torch.zeros(4, 5, dtype=torch.bfloat16), penalties(5))


def test_the_best_of_parts_is_the_best_of_all(emulated: EmulatedLibrary) -> None:
    """As ranks hold parts of a vocabulary: no logits are gathered."""
    logits = logits_of(7, 1000).clamp(max=2.0)  # with equals in every part
    logits[4, 600], logits[5], logits[6, :512] = float("nan"), float("-inf"), float("-inf")
    rows = [
        RowSampling(),
        *(RowSampling(1.0, seed=seed) for seed in range(2)),
        *[RowSampling()] * 4,
    ]
    whole = choose_tokens(emulated, logits, rows)
    parts = [
        choose_tokens(emulated, logits[:, begin:end], rows, begin)
        for begin, end in ((0, 512), (512, 516), (516, 1000))
    ]
    found = best_of_parts(parts)
    assert found.failed.tolist() == whole.failed.tolist() == [0, 0, 0, 0, 1, 2, 0]
    fine = whole.failed == 0
    assert torch.equal(found.tokens[fine], whole.tokens[fine])
    assert torch.equal(found.scores[fine], whole.scores[fine])
    # Whoever is asked in another order gives equals to the wrong part.
    backwards = best_of_parts(parts[::-1])
    assert not torch.equal(backwards.tokens[fine], whole.tokens[fine])


def test_the_twin_has_the_same_shapes() -> None:
    twin = reference_sampling.score_tokens(torch.zeros(2, 5), [0], [3], [2])
    assert isinstance(twin, ScoredTokens)
    assert twin.ids.tolist() == [[1, 0, 1]]
