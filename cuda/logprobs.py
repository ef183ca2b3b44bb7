"""Log probabilities of tokens by kernel, with the likeliest beside each, without a sort.

The torch twin is in `reference_sampling.py`. Units: natural logarithms, token ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from blockyard.cuda.launch import KernelLibrary, address
from blockyard.cuda.sampling import logits_build
from blockyard.cuda.upload import Upload

__all__ = ["MOST_TOP", "ScoredTokens", "score_tokens"]

MOST_TOP = 64
"""Most likeliest tokens beside each, as `logprobs.cu` has room for."""

_THREADS = 512
_SHARED_BYTES = 5120


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """What the model thought of some tokens; NaN where a row holds NaN or +inf.

    Attributes:
        logprobs: float32 `[tokens, 1 + most]`: of the token, then of the likeliest, best first, of
            equals the lowest id first.
        ids: int32 `[tokens, 1 + most]`: the token's rank, from 1, then the likeliest. Entries past
            what was asked for mean nothing.
    """

    logprobs: torch.Tensor
    ids: torch.Tensor


def score_tokens(
    library: KernelLibrary,
    logits: torch.Tensor,
    rows: Sequence[int],
    token_ids: Sequence[int],
    tops: Sequence[int],
) -> ScoredTokens:
    """Log probabilities and ranks of tokens, and the likeliest of their rows.

    Args:
        library: where the kernel comes from.
        logits: `[all rows, vocabulary]`, contiguous but for the rows.
        rows: the row of each token; a row may be named more than once.
        token_ids: the tokens.
        tops: how many likeliest to tell beside each, no more than the vocabulary has.

    Raises:
        ValueError: no kernel takes these logits, or more are asked for than there is room for.
    """
    most = max(tops, default=0)
    if most > min(MOST_TOP, logits.shape[1]) or logits.stride(1) != 1:
        raise ValueError(
            f"{most} likeliest of {logits.shape[1]} tokens, strides {logits.stride()}; "
            f"at most {MOST_TOP}"
        )
    build = logits_build("logprobs.cu", logits.dtype)
    device = logits.device
    logprobs = torch.zeros(len(rows), 1 + most, dtype=torch.float32, device=device)
    ids = torch.zeros(len(rows), 1 + most, dtype=torch.int32, device=device)
    if rows:
        asked = np.array((rows, token_ids, tops), dtype=np.int32)
        upload = Upload(device, rows=asked[0], chosen=asked[1], tops=asked[2])
        kernel = library.kernel(build, "score_tokens")
        arguments = np.zeros(1, kernel.arguments)
        arguments["logits"] = address(logits)
        for name in ("rows", "chosen", "tops"):
            arguments[name] = upload[name]
        arguments["logprobs"] = address(logprobs)
        arguments["ids"] = address(ids)
        arguments["row_stride"] = logits.stride(0)
        arguments["vocabulary"] = logits.shape[1]
        arguments["most"] = most
        kernel(len(rows), _THREADS, arguments, _SHARED_BYTES)
    return ScoredTokens(logprobs, ids)
