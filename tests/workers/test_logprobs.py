"""Log probabilities: whose they are, their order, their place."""

import torch

from blockyard.cuda.backend import TokenKernels
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.logit_rules import rules_for
from blockyard.workers.logprobs import token_logprobs
from blockyard.workers.sampler import SampleRow, sample

VOCABULARY = 90_000  # so that rows are worked through in slices
TOLERANCE = 5e-5  # of a float32 sum over so many


def _logits(rows: int) -> torch.Tensor:
    return 3.0 * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(5))


def test_values_ranks_and_order(kernels: TokenKernels | None) -> None:
    logits = _logits(25)
    expected = logits.double().log_softmax(-1)
    tokens = [int(row.argsort(descending=True)[index]) for index, row in enumerate(logits)]
    found = token_logprobs(logits, range(25), tokens, [index % 21 for index in range(25)], kernels)
    for row, (entry, token) in enumerate(zip(found, tokens, strict=True)):
        assert entry.rank == row + 1
        assert abs(entry.logprob - expected[row, token]) < TOLERANCE
        best = expected[row].topk(row % 21)
        assert entry.top_ids == tuple(best.indices.tolist())
        torch.testing.assert_close(
            torch.tensor(entry.top_logprobs), best.values.float(), atol=TOLERANCE, rtol=0
        )


def test_of_equals_the_lowest_ids_come_first(kernels: TokenKernels | None) -> None:
    logits = torch.zeros(1, 400)
    logits[0, 300] = 1.0
    (entry,) = token_logprobs(logits, [0], [300], [4], kernels)
    assert entry.top_ids == (300, 0, 1, 2)


def test_they_are_the_models_own_whatever_the_parameters(kernels: TokenKernels | None) -> None:
    """Before temperature, bias and penalties, of the token that was taken in spite of it all."""
    logits = _logits(3)
    params = SamplingParams(temperature=5.0, logit_bias=((17, 100.0),), logprobs=2)
    device = torch.device("cpu")
    rows = [
        SampleRow(SamplingParams(), 4, 0),
        SampleRow(params, 4, 0, rules_for(params, 1, [1], VOCABULARY, device)),
        SampleRow(SamplingParams(temperature=0.0, logprobs=0), 4, 0),
    ]
    result = sample(logits, rows, kernels)
    expected = logits.log_softmax(-1)
    assert result.token_ids[1] == 17
    assert result.logprobs[0] is None
    biased, greedy = result.logprobs[1:]
    assert biased is not None
    assert greedy is not None
    assert abs(biased.logprob - expected[1, 17]) < TOLERANCE
    assert biased.rank > 2
    assert 17 not in biased.top_ids
    assert (greedy.rank, greedy.top_ids) == (1, ())
    assert sample(logits[:1], rows[:1], kernels).logprobs == ()
