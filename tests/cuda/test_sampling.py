"""Tokens chosen by kernel, in the emulation, against a plain sort in float64."""

from collections.abc import Callable

import pytest
import torch

from blockyard.cuda import reference_sampling
from blockyard.cuda.emulator.build import EmulatedLibrary, Schedule
from blockyard.cuda.launch import KernelLibrary
from blockyard.cuda.sampling import RowSampling, choose_tokens, sampling_build
from blockyard.workers.gumbel import gumbel_noise

NEAR = 1e-4
"""Scores this close to the best one are as good: the kernel's noise is float32."""


def logits_of(rows: int, vocabulary: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, vocabulary, generator=random) * 3).to(dtype)


def check(library: KernelLibrary, logits: torch.Tensor, rows: list[RowSampling]) -> None:
    """Every token is the twin's, or ties with it; its score is that of the twin."""
    found = choose_tokens(library, logits, rows)
    assert found.failed.tolist() == [0] * len(rows)
    for index, row in enumerate(rows):
        scores = reference_sampling.gumbel_scores(logits[index].double(), row)
        token = int(found.tokens[index])
        best = float(scores.max())
        near = NEAR + 1e-6 * abs(best)  # low temperatures make scores large
        assert float(scores[token]) >= best - near, (index, row)
        assert abs(float(found.scores[index]) - float(scores[token])) <= near


PARAMETERS = [
    RowSampling(),
    RowSampling(1.0, seed=1),
    RowSampling(0.7, top_k=1, seed=2),
    RowSampling(1.3, top_k=7, seed=3),
    RowSampling(1.0, top_p=0.5, seed=4, position=9),
    RowSampling(1.0, top_p=0.95, seed=2**63 + 5, choice=3),
    RowSampling(0.6, min_p=0.1, seed=6),
    RowSampling(0.8, top_k=20, top_p=0.8, min_p=0.02, seed=7),
    RowSampling(2.0, top_k=10**6, top_p=0.999, seed=8),
    RowSampling(1e-3, top_p=0.9, seed=9),
    RowSampling(1.0, top_p=1e-6, seed=10),
    RowSampling(1.0, min_p=1.0, seed=11),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocabulary", [1, 5, 259, 2051])
def test_every_parameter(emulated: EmulatedLibrary, vocabulary: int, dtype: torch.dtype) -> None:
    check(emulated, logits_of(len(PARAMETERS), vocabulary, dtype), PARAMETERS)


def test_equals_are_taken_in_order_of_ids(emulated: EmulatedLibrary) -> None:
    """Half of all scores are one value, and it is where the line is drawn."""
    logits = logits_of(1, 1600, torch.float32)[0].clamp(max=0.0)
    for seed, (top_k, top_p) in enumerate(((3, 1.0), (700, 1.0), (0, 0.3), (500, 0.4))):
        row = RowSampling(1.0, top_k, top_p, seed=seed)
        kept = reference_sampling.kept_tokens(logits.double(), row)
        assert 0 < int((kept & (logits == 0)).sum()) < int((logits == 0).sum())
        rows = [RowSampling(1.0, top_k, top_p, seed=100 * seed + n) for n in range(6)]
        check(emulated, logits.repeat(6, 1), rows)


def test_noise_is_that_of_the_torch_sampler(emulated: EmulatedLibrary) -> None:
    """With equal logits the token is where the noise is highest: one wrong bit moves it."""
    keys = [(seed * 2**40 + 17, seed % 3, seed * 1001) for seed in range(24)]
    rows = [RowSampling(1.0, seed=s, choice=c, position=p) for s, c, p in keys]
    found = choose_tokens(emulated, torch.zeros(len(rows), 1000), rows)
    noise = gumbel_noise(keys, 1000, torch.device("cpu"))
    assert found.tokens.tolist() == noise.argmax(dim=-1).tolist()


def test_parts_of_a_vocabulary_together_choose_as_the_whole(emulated: EmulatedLibrary) -> None:
    logits = logits_of(4, 1000, torch.bfloat16)
    rows = [RowSampling(), *(RowSampling(1.0, seed=seed) for seed in range(3))]
    whole = choose_tokens(emulated, logits, rows)
    parts = [
        choose_tokens(emulated, logits[:, begin:end], rows, begin)
        for begin, end in ((0, 512), (512, 516), (516, 1000))
    ]
    scores = torch.stack([part.scores for part in parts])
    tokens = torch.stack([part.tokens for part in parts])
    assert torch.equal(tokens.gather(0, scores.argmax(0, keepdim=True))[0], whole.tokens)
    assert torch.equal(scores.amax(0), whole.scores)


def test_a_row_depends_on_nothing_but_itself(emulated: EmulatedLibrary) -> None:
    logits = logits_of(len(PARAMETERS), 700, torch.float32)
    together = choose_tokens(emulated, logits, PARAMETERS)
    emulated.schedule = Schedule("reverse", "lazy", 3)
    for index, row in enumerate(PARAMETERS):
        alone = choose_tokens(emulated, logits[index : index + 1], [row])
        assert int(alone.tokens[0]) == int(together.tokens[index])
        assert float(alone.scores[0]) == float(together.scores[index])


@pytest.mark.parametrize("sampling", [RowSampling(), RowSampling(1.0, top_p=0.9, top_k=5)])
def test_a_row_that_cannot_be_sampled_fails_alone(
    emulated: EmulatedLibrary, sampling: RowSampling
) -> None:
    logits = logits_of(5, 300, torch.float32)
    logits[1, 299] = float("nan")
    logits[2, 0] = float("inf")
    logits[3] = float("-inf")
    logits[4, 1:] = float("-inf")
    found = choose_tokens(emulated, logits, [sampling] * 5)
    assert found.failed.tolist() == [0, 1, 1, 2, 0]
    twin = reference_sampling.choose_tokens(logits, [sampling] * 5)
    assert twin.failed.tolist() == found.failed.tolist()
    assert int(found.tokens[4]) == 0


@pytest.mark.parametrize("fault", [1, 2], ids=["no barrier", "all of the equals"])
def test_planted_faults_are_caught(planted: Callable[[int], KernelLibrary], fault: int) -> None:
    logits = logits_of(1, 1600, torch.float32).clamp(max=0.0).repeat(8, 1)
    rows = [RowSampling(1.0, 3, seed=seed) for seed in range(8)]
    with pytest.raises(AssertionError):
        check(planted(fault), logits, rows)


def test_what_cannot_be_chosen_is_refused(emulated: EmulatedLibrary) -> None:
    with pytest.raises(ValueError, match="float64"):
        sampling_build(torch.float64)
    logits = torch.zeros(1, 8)
    with pytest.raises(ValueError, match="begins at 2"):
        choose_tokens(emulated, logits, [RowSampling()], 2)
    with pytest.raises(ValueError, match="does not tell"):
        choose_tokens(emulated, logits, [RowSampling(1.0, top_k=2)], 4)
    assert choose_tokens(emulated, logits[:0], []).tokens.shape == (0,)
