"""200,000 draws for each of six kinds of parameters follow the exact distribution."""

from typing import Any

import numpy as np
import pytest
import torch

from blockyard.cuda.backend import TokenKernels
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.logit_rules import rules_for
from blockyard.workers.sampler import SampleRow, sample

DRAWS = 200_000
BATCH = 2_000
VOCABULARY = 40
CPU = torch.device("cpu")
HISTORY = [1, 1, 4, 9]

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "hot, few": {"temperature": 1.7, "top_k": 12},
    "cold, nucleus": {"temperature": 0.8, "top_p": 0.85},
    "min-p and typical-p": {"min_p": 0.05, "typical_p": 0.9},
    "penalties and bias": {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "presence_penalty": -0.3,
        "logit_bias": ((2, 1.5), (7, -2.0)),
    },
    "allowed, all at once": {
        "temperature": 1.2,
        "allowed_token_ids": tuple(range(3, 30)),
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.01,
    },
}


def _exact(logits: np.ndarray[Any, Any], p: SamplingParams) -> np.ndarray[Any, Any]:
    """The probabilities, from the definitions, in float64."""
    scores = logits.astype(np.float64)
    for token, bias in p.logit_bias:
        scores[token] += bias
    if p.allowed_token_ids:
        scores[[t for t in range(VOCABULARY) if t not in p.allowed_token_ids]] = -np.inf
    if p.penalised:
        for token in set(HISTORY):
            factor = p.repetition_penalty
            scores[token] *= 1 / factor if scores[token] > 0 else factor
            count = HISTORY[1:].count(token)  # the first is the prompt
            scores[token] -= p.frequency_penalty * count + p.presence_penalty * (count > 0)
    chances = np.exp((scores - scores.max()) / p.temperature)
    chances /= chances.sum()
    chances[chances < p.min_p * chances.max()] = 0.0
    chances /= chances.sum()
    if p.typical_p < 1.0:
        surprise = -np.log(np.maximum(chances, 1e-300))
        near = np.argsort(abs(surprise - (chances * surprise).sum()), kind="stable")
        near = near[chances[near] > 0]
        kept = near[: 1 + np.searchsorted(np.cumsum(chances[near]), p.typical_p)]
        chances = np.where(np.isin(np.arange(VOCABULARY), kept), chances, 0.0)
    order = np.argsort(-chances, kind="stable")
    chances[order[p.top_k or VOCABULARY :]] = 0.0
    chances /= chances.sum()
    before = np.cumsum(chances[order]) - chances[order]
    chances[order[before >= p.top_p]] = 0.0
    return np.asarray(chances / chances.sum())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_draws_follow_the_exact_distribution_alone_and_batched(
    kernels: TokenKernels | None, kind: str
) -> None:
    params = SamplingParams(seed=2**63 + 11, **KINDS[kind])
    rules = rules_for(params, 1, HISTORY, VOCABULARY, CPU)
    logits = 1.5 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(8))
    exact = _exact(logits.numpy(), params)
    many = logits.expand(BATCH, VOCABULARY)
    counts = np.zeros(VOCABULARY)
    for begin in range(0, DRAWS, BATCH):
        rows = [SampleRow(params, begin + index, 3, rules) for index in range(BATCH)]
        tokens = sample(many, rows, kernels).token_ids
        counts += np.bincount(tokens, minlength=VOCABULARY)
        lone = begin // BATCH  # another place in each batch
        assert sample(logits[None], [rows[lone]], kernels).token_ids == (tokens[lone],)
    possible = exact > 0
    assert counts[~possible].sum() == 0
    expected = DRAWS * exact[possible]
    statistic = float(((counts[possible] - expected) ** 2 / expected).sum())
    freedom = int(possible.sum()) - 1
    # Mean `freedom`, variance `2 * freedom`: five deviations are one chance in a million or less.
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5 + 10
