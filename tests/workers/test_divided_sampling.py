"""Tokens that ranks choose together are those of whole rows, and little is told for them."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from blockyard.cuda.backend import TokenKernels
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.batch_parts import PromptRow
from blockyard.workers.divided_sampling import Sampled, sample_divided, sample_whole
from blockyard.workers.gumbel import gumbel_noise
from blockyard.workers.logit_rules import rules_for
from blockyard.workers.sampler import SampleRow

CPU = torch.device("cpu")
VOCABULARY = 301
STOPS = (5, 160, 299)


@dataclass
class Together:
    """Ranks that are asked one after the other, rank 0 last: their ends and what they told."""

    size: int
    told: list[list[torch.Tensor]] = field(default_factory=list)

    @property
    def bytes_told(self) -> int:
        """By ranks other than 0."""
        return sum(tensor.nbytes for rank in self.told for tensor in rank)

    def end(self, rank: int) -> Any:
        calls: list[torch.Tensor] = []
        if rank:
            self.told.insert(0, calls)

        def gather_columns(tensor: torch.Tensor) -> torch.Tensor:
            calls.append(tensor.clone())
            if rank:
                return tensor
            others = [told[len(calls) - 1] for told in self.told]
            assert {other.shape for other in others} == {tensor.shape}, "ranks have parted"
            return torch.cat((tensor, *others), dim=-1)

        return SimpleNamespace(rank=rank, size=self.size, gather_columns=gather_columns)


def row(
    position: int = 7, produced: int = 3, banned: tuple[int, ...] = (), **sampling: Any
) -> SampleRow:
    parameters = SamplingParams(**{"temperature": 0.0, **sampling})
    bias = tuple((token, -100.0) for token in banned)
    ruled = SamplingParams(temperature=0.0, logit_bias=bias) if banned else parameters
    return SampleRow(ruled, position, produced, rules_for(ruled, 0, (), VOCABULARY, CPU))


APART = (
    row(),
    row(temperature=0.7, seed=3),
    row(temperature=1.0, seed=2**63 + 9, position=40),
    row(temperature=1.5, seed=3, choice=2),
    row(min_tokens=9, stop_token_ids=STOPS),
    row(temperature=0.9, seed=8, min_tokens=9, stop_token_ids=STOPS),
)
WHOLE = (
    row(temperature=1.0, seed=5, top_k=20),
    row(temperature=1.0, seed=6, top_p=0.8),
    row(temperature=1.0, seed=7, min_p=0.1),
    row(logprobs=3),
    row(temperature=0.6, seed=9, logprobs=0),
    row(banned=(1, 2)),
)


def both(
    logits: torch.Tensor,
    rows: tuple[SampleRow, ...],
    ranks: int,
    prompts: tuple[PromptRow, ...] = (),
    origins: torch.Tensor | None = None,
    kernels: TokenKernels | None = None,
) -> tuple[Sampled, Sampled, int]:
    """What ranks choose together, what is chosen from whole rows, and bytes told for the one."""
    width = logits.shape[1]
    batch: Any = SimpleNamespace(sample_rows=rows, prompt_rows=prompts, sample_logits=origins)
    padded = -(-width // ranks)
    if kernels is not None:  # they take parts of whole counters of noise
        padded += -padded % 4
    together = Together(ranks)
    answer = None
    for rank in reversed(range(ranks)):
        piece = torch.zeros(len(logits), padded, dtype=logits.dtype)  # past the vocabulary: zeros
        own = logits[:, rank * padded : (rank + 1) * padded]
        piece[:, : own.shape[1]] = own
        answer = sample_divided(piece, batch, rows, width, together.end(rank), kernels)
        assert (answer is None) == (rank > 0)
    assert answer is not None
    return answer, sample_whole(logits, batch, rows, kernels), together.bytes_told


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_tokens_are_those_of_whole_rows(
    kernels: TokenKernels | None, ranks: int, dtype: torch.dtype
) -> None:
    chance = torch.Generator().manual_seed(ranks)
    for shift in range(4):
        rows = (*APART[shift:], *WHOLE, *APART[:shift])
        logits = (torch.randn(len(rows) + 2, VOCABULARY, generator=chance) * 2 - 4).to(dtype)
        logits[:, STOPS[shift % 3]] = 9.0  # the best of many rows, where it is allowed
        prompts = (PromptRow(1, 4, (17, 300), 2),)
        found, expected, _ = both(logits, rows, ranks, prompts, kernels=kernels)
        assert found == expected


def test_best_scores_of_many_parts_are_of_the_first(kernels: TokenKernels | None) -> None:
    """All scores are below those of what fills up the last part, and many are equal."""
    logits = torch.full((3, VOCABULARY), -3.0)
    logits[1, [150, 151, 290]] = -2.0
    rows = (row(), row(), row(temperature=1.0, seed=1))
    found, expected, _ = both(logits, rows, 3, kernels=kernels)
    assert found == expected
    assert found[0].token_ids[:2] == (0, 150)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("token", [0, 120, 300])
def test_a_part_that_is_no_good_spoils_its_row_alone(
    kernels: TokenKernels | None, number: float, token: int
) -> None:
    logits = torch.randn(4, VOCABULARY)
    logits[1, token] = number
    logits[2] = float("-inf")
    rows = (row(), row(temperature=1.0, seed=2), row(), row(temperature=1.0, seed=2))
    found, expected, _ = both(logits, rows, 3, kernels=kernels)
    assert (found[0].failed, found[0].emptied) == ((1, 2), (2,))
    assert (expected[0].failed, expected[0].emptied) == ((1, 2), (2,))
    assert [found[0].token_ids[i] == expected[0].token_ids[i] for i in (0, 3)] == [True, True]


def test_forks_are_chosen_from_their_parents_logits() -> None:
    logits = torch.randn(3, VOCABULARY)
    rows = tuple(row(temperature=1.0, seed=seed, choice=seed % 2) for seed in range(5))
    found, expected, _ = both(logits, rows, 2, origins=torch.tensor([0, 1, 2, 1, 0]))
    assert found == expected


def test_three_numbers_a_row_are_told_and_whole_rows_only_where_they_are_needed() -> None:
    width, ranks = 32_000, 4
    logits = torch.randn(12, width)
    *_, apart = both(logits, APART * 2, ranks)
    assert apart == 12 * 3 * 8 * (ranks - 1)
    *_, mixed = both(logits, (*APART, *APART[:5], WHOLE[0]), ranks)
    assert mixed == (11 * 3 * 8 + width // ranks * 4) * (ranks - 1)
    *_, whole = both(logits, WHOLE * 2, ranks)
    assert whole == 12 * (width // ranks) * 4 * (ranks - 1)


@pytest.mark.parametrize("first", [0, 1, 4, 130, 299])
def test_noise_of_a_part_is_that_of_the_whole(first: int) -> None:
    keys = [(2**40 + 1, 0, 5), (7, 3, 900)]
    whole = gumbel_noise(keys, VOCABULARY, CPU)
    part = gumbel_noise(keys, VOCABULARY - first, CPU, first)
    assert torch.equal(part, whole[:, first:])
