"""Which tokens a row may be drawn from: min-p, typical-p, top-k and top-p, applied in this order.

Each judges the distribution over what those before it left, and leaves at least one token. Only
the likeliest tokens of a row are put in order; all are where these do not decide. Every sum runs
over one row alone, in one order, so that a row's outcome does not depend on its batch.
"""

from collections.abc import Sequence

import torch

from blockyard.scheduler.sampling import SamplingParams

__all__ = ["Candidates", "candidates_of", "truncates"]

_FEW = (256, 4096)
"""Tokens put in order at first, and where these do not decide."""

Candidates = tuple[torch.Tensor, torch.Tensor]
"""Token ids, int64 `[rows, candidates]`, and their scores, float64; -inf where left out."""


def truncates(sampling: SamplingParams, vocabulary: int) -> bool:
    """Whether some tokens may be left out."""
    return (
        sampling.top_p < 1.0
        or 0 < sampling.top_k < vocabulary
        or sampling.min_p > 0.0
        or sampling.typical_p < 1.0
    )


def candidates_of(
    scores: torch.Tensor, sampling: Sequence[SamplingParams]
) -> list[tuple[list[int], Candidates]]:
    """What each row may be drawn from.

    Args:
        scores: float32 `[rows, vocabulary]`, divided by the temperature.
        sampling: parameters of each row.

    Returns:
        Groups of rows, each row in exactly one, with their candidates. A row that has no finite
        score gets candidates that mean nothing.
    """
    vocabulary = scores.shape[1]
    totals = _totals(scores, sampling)
    groups: list[tuple[list[int], Candidates]] = []
    rest = list(range(len(sampling)))
    for few in _FEW:
        tried = [row for row in rest if _may_do(few, sampling[row])]
        if not tried or few >= vocabulary:
            continue
        ids, kept, settled = _likeliest(
            scores[tried], totals[tried], [sampling[row] for row in tried], few
        )
        done = [index for index, fine in enumerate(settled) if fine]
        if done:
            rows = [tried[index] for index in done]
            groups.append((rows, (ids[done], kept[done])))
            rest = [row for row in rest if row not in set(rows)]
    if rest:
        parameters = [sampling[row] for row in rest]
        values, ids = scores[rest].sort(dim=-1, descending=True, stable=True)
        kept, _ = _truncate(values.double(), totals[rest], parameters, complete=True)
        groups.append((rest, (ids, kept)))
    return groups


def _totals(scores: torch.Tensor, sampling: Sequence[SamplingParams]) -> torch.Tensor:
    """What all tokens of a row weigh, float64 `[rows, 1]`; 1 where top-p does not ask for it."""
    totals = torch.ones(len(sampling), 1, dtype=torch.float64, device=scores.device)
    asked = [row for row, params in enumerate(sampling) if params.top_p < 1.0]
    if asked:
        at = torch.tensor(asked, device=scores.device)
        values = scores[at].double()
        weights = values.sub_(values.amax(dim=-1, keepdim=True)).exp_()
        # A cumulative sum has one order; how `sum` adds up depends on the rows beside.
        totals[at] = weights.cumsum(dim=-1)[:, -1:]
    return totals


def _may_do(few: int, sampling: SamplingParams) -> bool:
    return sampling.typical_p >= 1.0 and sampling.top_k < few


def _likeliest(
    scores: torch.Tensor, totals: torch.Tensor, sampling: list[SamplingParams], few: int
) -> tuple[torch.Tensor, torch.Tensor, list[bool]]:
    """The `few` likeliest in order, what is kept of them, and whether that is all of a row."""
    values, ids = scores.topk(few + 1, dim=-1)
    # Which of equals came first is not promised: by id, then stably by value.
    ids, by_id = ids.sort(dim=-1)
    values, by_value = values.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, by_value)
    outside, values, ids = values[:, few], values[:, :few], ids[:, :few]
    kept, settled = _truncate(values.double(), totals, sampling, complete=False)
    # Where one outside equals one that is kept, it might have been its turn.
    least = values.masked_fill(kept == float("-inf"), float("inf")).amin(dim=-1)
    return ids, kept, (settled & (least > outside)).tolist()


def _truncate(
    ordered: torch.Tensor, totals: torch.Tensor, sampling: list[SamplingParams], *, complete: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Leave out what the parameters say.

    Args:
        ordered: float64 `[rows, tokens]`, scores, likeliest first.
        totals: float64 `[rows, 1]`, what all tokens weigh, of which the likeliest weighs 1.
        sampling: parameters of each row.
        complete: whether all tokens are there.

    Returns:
        `ordered` with -inf for what is left out; and whether that holds for tokens that are not
        there too.
    """
    device = ordered.device
    logs = ordered - ordered[:, :1]
    weights = logs.exp()
    kept = torch.isfinite(ordered)
    kept[:, 0] = True
    min_p = _column(sampling, "min_p", device)
    kept &= weights >= min_p
    if any(params.typical_p < 1.0 for params in sampling):
        kept = _typical(logs, kept, _column(sampling, "typical_p", device))
    top_k = torch.tensor([params.top_k for params in sampling], device=device)[:, None]
    kept &= (kept.cumsum(dim=-1) <= top_k) | (top_k == 0)
    few = ~kept[:, -1]  # what follows would be left out as well
    held = torch.where(kept, weights, 0.0).cumsum(dim=-1)
    # Unless something was left out, the sum is that of all tokens.
    total = torch.where(few[:, None], held[:, -1:], totals)
    top_p = _column(sampling, "top_p", device)
    # Rounding may carry the sum there early, so 1 is not compared with: it keeps all. The first
    # that is kept has exactly 0 before it and always stays.
    outside = (held - weights >= top_p * total) & (top_p < 1.0)
    kept &= ~outside
    # What min-p leaves of those that are not there would be in the sum.
    all_count = min_p[:, 0] == 0.0
    settled = torch.ones_like(few) if complete else few | (outside[:, -1] & all_count)
    return ordered.masked_fill(~kept, float("-inf")), settled


def _typical(logs: torch.Tensor, kept: torch.Tensor, typical_p: torch.Tensor) -> torch.Tensor:
    """Those of `kept` whose surprise is nearest to the expected one, up to a sum of probabilities.

    All tokens must be there.
    """
    total = torch.where(kept, logs.exp(), 0.0).cumsum(dim=-1)[:, -1:]
    surprise = torch.where(kept, total.log() - logs, float("inf"))
    probabilities = torch.where(kept, (-surprise).exp(), 0.0)
    expected = torch.where(kept, probabilities * surprise, 0.0).cumsum(dim=-1)[:, -1:]
    distance = torch.where(kept, (surprise - expected).abs(), float("inf"))
    order = distance.sort(dim=-1, stable=True).indices
    ordered = probabilities.gather(1, order)
    chosen = (ordered.cumsum(dim=-1) - ordered < typical_p) | (typical_p >= 1.0)
    chosen[:, 0] = True
    return kept & torch.zeros_like(chosen).scatter(1, order, chosen)


def _column(sampling: list[SamplingParams], name: str, device: torch.device) -> torch.Tensor:
    values = [getattr(params, name) for params in sampling]
    return torch.tensor(values, dtype=torch.float64, device=device)[:, None]
