"""The sampling kernel's twin: the same choice by a plain sort, in float64.

Source of Gumbel-max: Gumbel 1954; of Philox4x32-10: Salmon et al. 2011.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from blockyard.cuda.sampling import ChosenTokens, RowSampling

__all__ = ["choose_tokens", "gumbel_scores", "kept_tokens"]

_MASK = np.uint64(0xFFFFFFFF)


def choose_tokens(
    logits: torch.Tensor, rows: Sequence[RowSampling], offset: int = 0
) -> ChosenTokens:
    """See `blockyard.cuda.sampling.choose_tokens`."""
    tokens, scores, failed = [], [], []
    for values, row in zip(logits.double(), rows, strict=True):
        bad = bool((~(values < float("inf"))).any()) or not bool(values.isfinite().any())
        perturbed = gumbel_scores(values, row, offset)
        best = int(perturbed.argmax())
        tokens.append(0 if bad else offset + best)
        scores.append(float(perturbed[best]))
        failed.append(int(bad))
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
