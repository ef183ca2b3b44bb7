"""Truncation against a slow twin that orders every token, and that company changes nothing."""

from typing import Any

import numpy as np
import pytest
import torch

from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.truncation import candidates_of

VOCABULARY = 6000  # more than are put in order at first, and then


def _scores(rows: int, spread: float, ties: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    scores = spread * torch.randn(rows, VOCABULARY, generator=generator)
    return (scores * 2).round() / 2 if ties else scores


def _kept(scores: torch.Tensor, sampling: list[SamplingParams]) -> list[list[int]]:
    """What is kept of each row, likeliest first."""
    kept: list[list[int]] = [[] for _ in sampling]
    seen: list[int] = []
    for rows, (ids, values) in candidates_of(scores, sampling):
        seen += rows
        for row, tokens, logs in zip(rows, ids.tolist(), values.tolist(), strict=True):
            kept[row] = [t for t, log in zip(tokens, logs, strict=True) if log != float("-inf")]
    assert sorted(seen) == list(range(len(sampling)))
    return kept


def _slow(row: torch.Tensor, params: SamplingParams) -> list[int]:
    """The same by the book: order all, then walk down."""
    order = np.argsort(-row.numpy(), kind="stable")
    logs = row.double().log_softmax(-1).numpy()
    chances = np.exp(logs[order])
    keep = chances >= params.min_p * chances[0]
    if params.typical_p < 1.0:
        share = np.where(keep, chances, 0) / chances[keep].sum()
        surprise = np.where(keep, -np.log(np.maximum(share, 1e-300)), np.inf)
        expected = (share[keep] * surprise[keep]).sum()
        near = np.argsort(np.where(keep, abs(surprise - expected), np.inf), kind="stable")
        count = 1 + np.searchsorted(np.cumsum(share[near]), params.typical_p)
        keep &= np.isin(np.arange(len(keep)), near[:count])
    if params.top_k:
        keep &= np.cumsum(keep) <= params.top_k
    if params.top_p < 1.0:
        share = np.where(keep, chances, 0) / chances[keep].sum()
        keep &= np.cumsum(share) - share < params.top_p
    return [int(token) for token in order[keep]]


CASES: list[dict[str, Any]] = [
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 300},
    {"top_k": 5000},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"min_p": 0.02},
    {"min_p": 1.0},
    {"min_p": 0.005, "top_p": 0.3},  # of a sum over more than are put in order at first
    {"typical_p": 0.4},
    {"typical_p": 0.95, "min_p": 0.001},
    {"top_k": 60, "top_p": 0.7},
    {"top_k": 100, "top_p": 0.8, "min_p": 0.01},
    {"typical_p": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.001},
]


@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])
def test_keeps_what_the_slow_twin_keeps(spread: float) -> None:
    sampling = [SamplingParams(**case) for case in CASES]
    scores = _scores(len(CASES), spread)
    for case, row, params, kept in zip(
        CASES, scores, sampling, _kept(scores, sampling), strict=True
    ):
        expected = _slow(row, params)
        # A sum that reaches its limit within rounding may fall on either side of it.
        assert kept[: len(expected) - 1] == expected[: len(kept) - 1], case
        assert abs(len(kept) - len(expected)) <= 1, case


def test_of_equals_the_lowest_ids_are_kept() -> None:
    """Many ties across the edge of the tokens that are put in order first."""
    for top_k in (1, 7, 200, 255, 256, 4000):
        sampling = [SamplingParams(top_k=top_k)] * 2
        scores = _scores(2, 0.4, ties=True)
        for row, kept in zip(scores, _kept(scores, sampling), strict=True):
            assert kept == torch.sort(-row, stable=True).indices[:top_k].tolist()


def test_a_row_is_the_same_alone_and_in_company() -> None:
    sampling = [SamplingParams(**case) for case in CASES] * 3
    scores = torch.cat([_scores(len(CASES), spread) for spread in (0.5, 2.0, 6.0)])

    def bits(rows: list[int]) -> dict[int, tuple[list[int], list[float]]]:
        found = {}
        for members, (ids, values) in candidates_of(scores[rows], [sampling[r] for r in rows]):
            for member, tokens, logs in zip(members, ids.tolist(), values.tolist(), strict=True):
                found[rows[member]] = tokens, logs
        return found

    together = bits(list(range(len(sampling))))
    for row in range(len(sampling)):
        assert bits([row])[row] == together[row]


def test_few_allowed_tokens_leave_at_least_one() -> None:
    scores = torch.full((3, VOCABULARY), float("-inf"))
    scores[:, [5, 900, 4000]] = torch.tensor([1.0, 2.0, 0.0])
    sampling = [
        SamplingParams(top_p=1e-9),
        SamplingParams(min_p=1.0, typical_p=1e-9, top_k=1, top_p=1e-9),
        SamplingParams(top_k=2),
    ]
    assert _kept(scores, sampling) == [[900], [900], [900, 5]]
