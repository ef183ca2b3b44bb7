"""Chooses the next token of each row: a pure function of logits, parameters, seed and position.

Order of operations: stop tokens masked while fewer than `min_tokens` were produced; then, for
greedy rows, the most likely token (the lowest id of equals is not promised); for others division
by temperature, top-k, top-p over what top-k left, and Gumbel-max. The noise of a token depends on
(seed, choice, position, token id) alone, so a row's token does not depend on its batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.philox import philox4x32

__all__ = ["SampleRow", "SampledTokens", "gumbel_noise", "sample"]

_MASK = 0xFFFFFFFF
_DRAWN_ROWS = 16
"""Rows drawn at once: bounds the memory of the noise and of the sorting."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """How one row of logits is sampled.

    Attributes:
        sampling: the request's parameters.
        position: position of the new token within its request, prompt included.
        produced: tokens produced before this one.
    """

    sampling: SamplingParams
    position: int
    produced: int


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One token for each row; `failed` are the rows whose token means nothing."""

    token_ids: tuple[int, ...]
    failed: tuple[int, ...]


def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> SampledTokens:
    """Choose a token for each row.

    Args:
        logits: `[rows, vocabulary]`, any floating type, not changed.
        rows: parameters of each row.

    Returns:
        The tokens. A row fails when a logit is NaN or +inf, or none is left to choose from.
    """
    if not rows:
        return SampledTokens((), ())
    scores = _mask_stop_tokens(logits.float(), rows)
    highest, choices = scores.max(dim=-1)  # NaN counts as the highest
    good = torch.isfinite(highest)
    drawn = [index for index, row in enumerate(rows) if not row.sampling.greedy]
    for begin in range(0, len(drawn), _DRAWN_ROWS):
        part = drawn[begin : begin + _DRAWN_ROWS]
        index = torch.tensor(part, device=logits.device)
        choices = choices.index_copy(0, index, _draw(scores[index], [rows[i] for i in part]))
    answer = torch.stack((choices, good.long())).tolist()  # one transfer from the device
    failed = tuple(row for row, fine in enumerate(answer[1]) if not fine)
    return SampledTokens(tuple(answer[0]), failed)


def gumbel_noise(rows: Sequence[SampleRow], vocabulary: int, device: torch.device) -> torch.Tensor:
    """Standard Gumbel noise, float64 `[rows, vocabulary]`.

    Token `t` takes word `t % 4` of Philox at counter `(t // 4, position, choice, 0)` under the
    seed as key.
    """

    def column(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)[:, None]

    groups = torch.arange(-(-vocabulary // 4), device=device)[None, :]
    words = philox4x32(
        (
            groups,
            column([row.position for row in rows]),
            column([row.sampling.choice for row in rows]),
            torch.zeros_like(groups),
        ),
        (
            column([row.sampling.seed & _MASK for row in rows]),
            column([row.sampling.seed >> 32 for row in rows]),
        ),
    )
    bits = torch.stack(words, dim=-1).flatten(1)[:, :vocabulary]
    # The middle of each of the 2^32 intervals: never 0 or 1. Float64 holds it exactly.
    uniform = (bits.double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log(uniform))


def _mask_stop_tokens(scores: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    row_ids: list[int] = []
    token_ids: list[int] = []
    for index, row in enumerate(rows):
        if row.produced < row.sampling.min_tokens:
            stops = row.sampling.stop_token_ids
            row_ids.extend([index] * len(stops))
            token_ids.extend(stops)
    if not row_ids:
        return scores
    where = (
        torch.tensor(row_ids, device=scores.device),
        torch.tensor(token_ids, device=scores.device),
    )
    return scores.index_put(where, scores.new_tensor(float("-inf")))


def _draw(scores: torch.Tensor, rows: list[SampleRow]) -> torch.Tensor:
    """Gumbel-max over the filtered distribution of each row; returns `[rows]` token ids."""
    device, vocabulary = scores.device, scores.shape[1]
    temperature = _float64([row.sampling.temperature for row in rows], device)
    scores = scores.double() / temperature[:, None]
    narrowed = [
        index
        for index, row in enumerate(rows)
        if row.sampling.top_p < 1.0 or 0 < row.sampling.top_k < vocabulary
    ]
    if narrowed:
        index = torch.tensor(narrowed, device=device)
        kept = _keep_likely(scores[index], [rows[i].sampling for i in narrowed])
        scores = scores.index_copy(0, index, kept)
    return (scores + gumbel_noise(rows, vocabulary, device)).argmax(dim=-1)


def _keep_likely(scores: torch.Tensor, sampling: list[SamplingParams]) -> torch.Tensor:
    """Set to -inf what top-k, then top-p leave out. The most likely token always stays."""
    device, vocabulary = scores.device, scores.shape[1]
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    top_k = torch.tensor([params.top_k or vocabulary for params in sampling], device=device)
    ranks = torch.arange(vocabulary, device=device)[None, :]
    ordered = ordered.masked_fill(ranks >= top_k[:, None], float("-inf"))
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    top_p = _float64([params.top_p for params in sampling], device)
    # Rounding may carry the sum to 1 early, so 1 is not compared with: it keeps all. The first
    # has exactly 0 before it and always stays.
    outside = (before >= top_p[:, None]) & (top_p[:, None] < 1.0)
    ordered = ordered.masked_fill(outside, float("-inf"))
    return torch.empty_like(scores).scatter(1, order, ordered)


def _float64(values: list[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)
