"""Scores the tokens of prompts that want it, from the logits of the tokens before them."""

from collections.abc import Sequence

import torch

from blockyard.cuda.backend import TokenKernels
from blockyard.scheduler.plan import PromptLogprobs
from blockyard.workers.batch_parts import PromptRow
from blockyard.workers.logprobs import token_logprobs

__all__ = ["score_prompts"]


def score_prompts(
    logits: torch.Tensor, rows: Sequence[PromptRow], kernels: TokenKernels | None = None
) -> tuple[PromptLogprobs, ...]:
    """Log probabilities of prompt tokens.

    Args:
        logits: `[all, vocabulary]`; the last ones are those of `rows`, one for each token.
        rows: the tokens, in order.
        kernels: the backend's, if it has any.
    """
    token_ids = [token for row in rows for token in row.token_ids]
    if not token_ids:
        return ()
    begin = len(logits) - len(token_ids)
    tops = [row.top for row in rows for _ in row.token_ids]
    entries = iter(token_logprobs(logits, range(begin, len(logits)), token_ids, tops, kernels))
    return tuple(
        PromptLogprobs(row.handle, row.position, tuple(next(entries) for _ in row.token_ids))
        for row in rows
    )
