"""The sampler as a function: what it may choose, and that company does not change it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from blockyard.cuda.backend import TokenKernels
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.gumbel import gumbel_noise
from blockyard.workers.sampler import SampleRow, sample

VOCABULARY = 1003  # not a multiple of 4
CPU = torch.device("cpu")


def _logits(rows: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3.0 * torch.randn(rows, VOCABULARY, generator=generator)


def _row(position: int = 5, **sampling: Any) -> SampleRow:
    return SampleRow(SamplingParams(**sampling), position, produced=0)


def test_greedy_takes_the_most_likely(kernels: TokenKernels | None) -> None:
    logits = _logits(6)
    rows = [_row(temperature=0.0)] * 5 + [_row(temperature=1e-5)]
    assert sample(logits, rows, kernels).token_ids == tuple(logits.argmax(dim=-1).tolist())


def test_a_row_is_bit_equal_alone_and_in_any_batch(kernels: TokenKernels | None) -> None:
    logits = _logits(40)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.7, "seed": 2**64 - 1},
        {"temperature": 1.0, "top_k": 5, "seed": 3},
        {"temperature": 1.9, "top_p": 0.8, "seed": 2**40},
        {"temperature": 1.1, "top_p": 0.9, "top_k": 50, "choice": 3, "seed": 9},
    ]
    rows = [_row(position=index, **kinds[index % 5]) for index in range(40)]
    together = sample(logits, rows, kernels).token_ids
    alone = [sample(logits[i : i + 1], rows[i : i + 1], kernels).token_ids[0] for i in range(40)]
    assert list(together) == alone
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = sample(logits[order], [rows[i] for i in order], kernels).token_ids
    assert list(shuffled) == [together[i] for i in order]


def test_seed_choice_and_position_each_change_the_noise() -> None:
    base = _row(position=7, seed=11)
    others = [
        replace(base, position=8),
        replace(base, sampling=replace(base.sampling, seed=12)),
        replace(base, sampling=replace(base.sampling, seed=11 + 2**32)),
        replace(base, sampling=replace(base.sampling, choice=1)),
    ]
    noise = gumbel_noise([row.noise_key for row in (base, *others)], VOCABULARY, CPU)
    for other in range(1, 5):
        assert not torch.equal(noise[0], noise[other])
    assert torch.equal(noise[0], gumbel_noise([base.noise_key], VOCABULARY, CPU)[0])
    assert torch.isfinite(noise).all()


def test_frequencies_follow_the_softmax(kernels: TokenKernels | None) -> None:
    logits = torch.full((1, 8), -20.0)
    logits[0, :4] = torch.log(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    draws = 4000
    rows = [_row(position=index, temperature=1.0, seed=1) for index in range(draws)]
    tokens = sample(logits.expand(draws, 8), rows, kernels).token_ids
    shares = np.bincount(tokens, minlength=8) / draws
    # Four standard deviations of a share of one half.
    np.testing.assert_allclose(shares[:4], [0.1, 0.2, 0.3, 0.4], atol=4 * 0.5 / draws**0.5)
    assert shares[4:].sum() == 0


def test_temperature_flattens(kernels: TokenKernels | None) -> None:
    logits = torch.tensor([[2.0, 0.0]]).expand(500, 2)
    cold, hot = (
        sample(
            logits, [_row(position=i, temperature=t, seed=4) for i in range(500)], kernels
        ).token_ids
        for t in (0.25, 50.0)
    )
    assert sum(cold) < 10
    assert 200 < sum(hot) < 300


def test_top_k_keeps_exactly_k_even_among_equals(kernels: TokenKernels | None) -> None:
    logits = torch.zeros(400, 10)
    rows = [_row(position=index, top_k=3, seed=1) for index in range(400)]
    assert set(sample(logits, rows, kernels).token_ids) == {0, 1, 2}


def test_top_p_keeps_the_smallest_set_that_reaches_it(kernels: TokenKernels | None) -> None:
    logits = torch.log(torch.tensor([[0.15, 0.5, 0.05, 0.3]])).expand(400, 4)

    def chosen(**sampling: Any) -> set[int]:
        rows = [_row(position=index, seed=1, **sampling) for index in range(400)]
        return set(sample(logits, rows, kernels).token_ids)

    assert chosen(top_p=0.45) == {1}
    assert chosen(top_p=0.79) == {1, 3}
    assert chosen(top_p=0.81) == {0, 1, 3}
    assert chosen(top_p=1.0) == {0, 1, 2, 3}
    assert chosen(top_p=1e-9) == {1}
    assert chosen(top_k=2, top_p=0.6) == {1}, "top-p counts what top-k left: 0.5 of 0.8"


def test_stop_tokens_wait_for_min_tokens(kernels: TokenKernels | None) -> None:
    logits = _logits(1)
    best = int(logits.argmax())
    second = int(logits.topk(2).indices[0, 1])
    sampling = SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=(best,))
    early, late = SampleRow(sampling, 9, produced=2), SampleRow(sampling, 10, produced=3)
    before = logits.clone()
    assert sample(logits.expand(2, -1), [early, late], kernels).token_ids == (second, best)
    assert torch.equal(logits, before), "the caller's logits stay as they were"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_poisoned_row_fails_alone(
    kernels: TokenKernels | None, temperature: float, poison: float
) -> None:
    logits = _logits(3)
    rows = [_row(position=index, temperature=temperature, seed=1) for index in range(3)]
    clean = sample(logits, rows, kernels)
    logits[1, 17] = poison
    result = sample(logits, rows, kernels)
    assert result.failed == (1,)
    assert result.emptied == (), "that is nobody's wish"
    assert (result.token_ids[0], result.token_ids[2]) == (clean.token_ids[0], clean.token_ids[2])
    assert 0 <= result.token_ids[1] < VOCABULARY


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_poison_is_found_wherever_it_is(kernels: TokenKernels | None, poison: float) -> None:
    logits = torch.zeros(150, 150).fill_diagonal_(poison)
    rows = [_row(position=index, seed=1, top_p=0.9) for index in range(150)]
    assert sample(logits, rows, kernels).failed == tuple(range(150))


def test_row_with_nothing_left_fails(kernels: TokenKernels | None) -> None:
    logits = torch.full((2, 4), float("-inf"))
    logits[:, 2] = 1.0
    sampling = SamplingParams(temperature=1.0, min_tokens=1, stop_token_ids=(2,))
    rows = [SampleRow(sampling, 3, produced=0), SampleRow(sampling, 4, produced=1)]
    result = sample(logits, rows, kernels)
    assert result.failed == (0,)
    assert result.token_ids[1] == 2


def test_no_rows(kernels: TokenKernels | None) -> None:
    assert sample(torch.empty(0, 7), [], kernels).token_ids == ()
