"""Twins of the sampling kernels: the same by a plain sort, in float64.

Source of Gumbel-max: Gumbel 1954; of Philox4x32-10: Salmon et al. 2011.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from blockyard.cuda.logprobs import ScoredTokens
from blockyard.cuda.penalties import RowPenalties
from blockyard.cuda.sampling import ChosenTokens, RowSampling

__all__ = ["choose_tokens", "gumbel_scores", "kept_tokens", "penalise", "score_tokens"]

_MASK = np.uint64(0xFFFFFFFF)


def choose_tokens(
    logits: torch.Tensor, rows: Sequence[RowSampling], offset: int = 0
) -> ChosenTokens:
    """See `blockyard.cuda.sampling.choose_tokens`."""
    tokens, scores, failed = [], [], []
    for values, row in zip(logits.double(), rows, strict=True):
        bad = 1 if bool((~(values < float("inf"))).any()) else 0
        if not bad and not bool(values.isfinite().any()):
            bad = 2
        perturbed = gumbel_scores(values, row, offset)
        best = int(perturbed.argmax())
        tokens.append(0 if bad else offset + best)
        scores.append(float(perturbed[best]))
        failed.append(bad)
    integers = torch.tensor([tokens, failed], dtype=torch.int32)
    return ChosenTokens(integers[0], torch.tensor(scores), integers[1])


def gumbel_scores(values: torch.Tensor, row: RowSampling, offset: int = 0) -> torch.Tensor:
    """What the chosen token is the highest of: float64 `[vocabulary]`, -inf for left out ones."""
    if row.temperature == 0:
        return values
    # As the kernel divides, in float32: equal scores must stay equal.
    scores = (values.float() / row.temperature).double()
    noise = torch.from_numpy(_noise(row, offset, len(values)))
    return (scores + noise).masked_fill(~kept_tokens(scores, row), float("-inf"))


def kept_tokens(scores: torch.Tensor, row: RowSampling) -> torch.Tensor:
    """Which tokens may be drawn, bool `[vocabulary]`."""
    order = scores.sort(descending=True, stable=True).indices
    ordered = scores[order]
    weights = (ordered - ordered[0]).exp()
    kept = torch.isfinite(ordered)
    if row.min_p > 0:
        kept &= ordered >= ordered[0] + np.log(row.min_p)
    if row.top_k:
        kept &= kept.cumsum(0) <= row.top_k
    if row.top_p < 1:
        held = weights.where(kept, torch.zeros(())).cumsum(0)
        kept &= held - weights < row.top_p * held[-1]
    return torch.zeros_like(kept).scatter(0, order, kept)


def penalise(scores: torch.Tensor, rows: Sequence[RowPenalties]) -> None:
    """See `blockyard.cuda.penalties.penalise`."""
    for each in rows:
        values = scores[each.row]
        seen = each.in_prompt | (each.produced > 0)
        repeated = torch.where(values > 0, values / each.repetition, values * each.repetition)
        values = torch.where(seen, repeated, values)
        off = each.frequency * each.produced + each.presence * (each.produced > 0)
        scores[each.row] = values - off


def score_tokens(
    logits: torch.Tensor, rows: Sequence[int], token_ids: Sequence[int], tops: Sequence[int]
) -> ScoredTokens:
    """See `blockyard.cuda.logprobs.score_tokens`."""
    most = max(tops, default=0)
    logprobs = torch.zeros(len(rows), 1 + most)
    ids = torch.zeros(len(rows), 1 + most, dtype=torch.int32)
    for index, (row, token, top) in enumerate(zip(rows, token_ids, tops, strict=True)):
        values = logits[row].double()
        logs = values.log_softmax(0)
        best = values.sort(descending=True, stable=True).indices[:top]
        logprobs[index, 0], logprobs[index, 1 : 1 + top] = logs[token], logs[best]
        ids[index, 0] = (values > values[token]).sum() + 1
        ids[index, 1 : 1 + top] = best
    return ScoredTokens(logprobs, ids)


def _noise(row: RowSampling, offset: int, count: int) -> npt.NDArray[np.float64]:
    ids = np.arange(offset, offset + count, dtype=np.uint64)
    counter = [ids // np.uint64(4), *(np.full_like(ids, n) for n in (row.position, row.choice, 0))]
    low, high = np.uint64(row.seed & 0xFFFFFFFF), np.uint64(row.seed >> 32)
    for _ in range(10):
        left, right = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        counter = [
            (right >> np.uint64(32)) ^ counter[1] ^ low,
            right & _MASK,
            (left >> np.uint64(32)) ^ counter[3] ^ high,
            left & _MASK,
        ]
        low = (low + np.uint64(0x9E3779B9)) & _MASK
        high = (high + np.uint64(0xBB67AE85)) & _MASK
    words = np.stack(counter)[(ids % np.uint64(4)).astype(int), np.arange(count)]
    return np.asarray(-np.log(-np.log((words.astype(np.float64) + 0.5) * 2.0**-32)))
