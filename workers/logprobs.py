"""Log probabilities of tokens under the model's own scores, before any sampling parameter.

Works through rows in slices, so that its memory is bounded. Of equal scores the lowest id comes
first. Knows no requests. Units: natural logarithms.
"""

from collections.abc import Sequence

import torch

from blockyard.cuda.backend import TokenKernels
from blockyard.scheduler.sampling import TokenLogprobs

__all__ = ["token_logprobs"]

_ELEMENTS_AT_ONCE = 1 << 20


def token_logprobs(
    logits: torch.Tensor,
    rows: Sequence[int],
    token_ids: Sequence[int],
    tops: Sequence[int],
    kernels: TokenKernels | None = None,
) -> list[TokenLogprobs]:
    """What the model thought of some tokens.

    Args:
        logits: `[all rows, vocabulary]`, any floating type, not changed.
        rows: the row of each token; a row may be named more than once.
        token_ids: the tokens.
        tops: how many likeliest tokens to tell beside each.
        kernels: the backend's, if it has any.
    """
    vocabulary = logits.shape[1]
    if kernels is not None:
        return _by_kernel(kernels, logits, rows, token_ids, [min(n, vocabulary) for n in tops])
    at_once = max(1, _ELEMENTS_AT_ONCE // vocabulary)
    found: list[TokenLogprobs] = []
    for begin in range(0, len(rows), at_once):
        part = slice(begin, begin + at_once)
        index = torch.tensor(rows[part], device=logits.device)
        found += _slice(logits[index], list(token_ids[part]), list(tops[part]))
    return found


def _by_kernel(
    kernels: TokenKernels,
    logits: torch.Tensor,
    rows: Sequence[int],
    token_ids: Sequence[int],
    tops: Sequence[int],
) -> list[TokenLogprobs]:
    scored = kernels.score(logits, rows, token_ids, tops)
    return [
        TokenLogprobs(logprob, rank, tuple(best[:top]), tuple(logprobs[:top]))
        for (logprob, *logprobs), (rank, *best), top in zip(
            scored.logprobs.tolist(), scored.ids.tolist(), tops, strict=True
        )
    ]


def _slice(logits: torch.Tensor, token_ids: list[int], tops: list[int]) -> list[TokenLogprobs]:
    scores = logits.float()
    logs = scores.log_softmax(dim=-1)
    chosen = torch.tensor(token_ids, device=logs.device)[:, None]
    ranks = (scores > scores.gather(1, chosen)).sum(dim=-1) + 1
    ids = _top(scores, min(max(tops), logs.shape[1]))
    table = logs.gather(1, torch.cat((chosen, ids), dim=1)).tolist()
    return [
        TokenLogprobs(logprob, rank, tuple(best[:top]), tuple(logprobs[:top]))
        for (logprob, *logprobs), rank, best, top in zip(
            table, ranks.tolist(), ids.tolist(), tops, strict=True
        )
    ]


def _top(scores: torch.Tensor, most: int) -> torch.Tensor:
    """The highest of each row, best first, of equals the lowest id first."""
    if not most:
        return torch.empty(len(scores), 0, dtype=torch.int64, device=scores.device)
    values, ids = scores.topk(most, dim=-1)
    last = values[:, -1:]
    if bool(((scores == last).sum(dim=-1) > (values == last).sum(dim=-1)).any()):
        # Which of equals are among them is not promised.
        return scores.sort(dim=-1, descending=True, stable=True).indices[:, :most]
    ids, by_id = ids.sort(dim=-1)
    by_value = values.gather(1, by_id).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(1, by_value)
