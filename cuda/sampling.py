"""Chooses tokens by kernel: greedy, or Gumbel-max after min-p, top-k and top-p, without a sort.

Rows over a part of the vocabulary (`offset`) may be greedy or drawn from all tokens; the best of
all parts, by score and then by the lower id, is the token: no logits need to be gathered. The
torch twin is `reference_sampling.py`. Units: token ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from blockyard.cuda.launch import KernelLibrary, address
from blockyard.cuda.sources import Build
from blockyard.cuda.upload import Upload

__all__ = [
    "ChosenTokens",
    "RowSampling",
    "best_of_parts",
    "choose_tokens",
    "logits_build",
    "sampling_build",
]

_THREADS = 512
_SHARED_BYTES = 4096
_LOGITS = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How one row's token is chosen.

    Attributes:
        temperature: what scores are divided by; 0 takes the likeliest token.
        top_k: the likeliest tokens to draw from; 0 means all.
        top_p: the likeliest tokens whose probabilities reach this sum; 1 means all.
        min_p: tokens less likely than this share of the likeliest are left out.
        seed: 64 bits; with choice, position and token id all that noise depends on.
        choice: which of a request's answers.
        position: of the new token.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    position: int = 0

    @property
    def truncates(self) -> bool:
        """Whether tokens may be left out."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)


@dataclass(frozen=True, slots=True)
class ChosenTokens:
    """One token a row.

    Attributes:
        tokens: int32 `[rows]`, ids of the whole vocabulary.
        scores: `[rows]`, the winners' scores, noise included: float32 of the kernel, float64 of
            native code, which chooses by them.
        failed: int32 `[rows]`, 1 where a logit is NaN or +inf, 2 where none is above -inf.
    """

    tokens: torch.Tensor
    scores: torch.Tensor
    failed: torch.Tensor


def sampling_build(dtype: torch.dtype) -> Build:
    """The build for logits of this dtype.

    Raises:
        ValueError: there is none.
    """
    return logits_build("sampling.cu", dtype)


def logits_build(source: str, dtype: torch.dtype) -> Build:
    """The build of a kernel over rows of logits of this dtype.

    Raises:
        ValueError: there is none.
    """
    if dtype not in _LOGITS:
        raise ValueError(f"logits are {dtype}; the kernels take float32, bfloat16 and float16")
    return Build.of(source, LOGITS=_LOGITS[dtype])


def best_of_parts(parts: Sequence[ChosenTokens]) -> ChosenTokens:
    """The choice of a whole vocabulary from those of its parts, in order of their ids.

    The best score wins, of equals the lower id, as within a part. A row is whole when no part's
    logits are NaN or +inf, and has a token when one part has.
    """
    scores = torch.stack([part.scores for part in parts])
    failed = torch.stack([part.failed for part in parts])
    # A part without tokens never wins; argmax takes the first of equals on no device for certain.
    scores = scores.masked_fill(failed > 0, float("-inf"))
    order = torch.arange(len(parts), device=scores.device)[:, None].expand_as(scores)
    best = order.masked_fill(scores < scores.amax(0), len(parts)).amin(0, keepdim=True)
    broken = (failed == 1).any(0).int()
    empty = 2 * (failed == 2).all(0).int()
    return ChosenTokens(
        torch.stack([part.tokens for part in parts]).gather(0, best)[0],
        scores.gather(0, best)[0],
        broken + empty * (1 - broken),
    )


def choose_tokens(
    library: KernelLibrary, logits: torch.Tensor, rows: Sequence[RowSampling], offset: int = 0
) -> ChosenTokens:
    """Choose a token for each row.

    Args:
        library: where kernels come from.
        logits: `[rows, vocabulary]`, contiguous but for the rows.
        rows: how each is chosen.
        offset: id of the first logit, a multiple of 4; not 0 for a part of the vocabulary.

    Raises:
        ValueError: no kernel takes these logits, or a part of a vocabulary is to be truncated.
    """
    build = sampling_build(logits.dtype)
    if offset % 4 or logits.stride(-1) != 1:
        raise ValueError(f"the part begins at {offset}, strides {logits.stride()}")
    if offset and any(row.truncates for row in rows):
        raise ValueError("a part of a vocabulary does not tell which tokens are likeliest")
    device = logits.device
    integers = torch.empty(2, len(rows), dtype=torch.int32, device=device)
    scores = torch.empty(len(rows), dtype=torch.float32, device=device)
    if rows:
        upload = Upload(device, parameters=_packed(rows))
        kernel = library.kernel(build, "sample_rows")
        arguments = np.zeros(1, kernel.arguments)
        arguments["logits"] = address(logits)
        arguments["parameters"] = upload["parameters"]
        arguments["tokens"] = address(integers)
        arguments["scores"] = address(scores)
        arguments["failed"] = address(integers[1])
        arguments["row_stride"] = logits.stride(0)
        arguments["vocabulary"] = logits.shape[1]
        arguments["offset"] = offset
        kernel(len(rows), _THREADS, arguments, _SHARED_BYTES)
    return ChosenTokens(integers[0], scores, integers[1])


def _packed(rows: Sequence[RowSampling]) -> npt.NDArray[np.int32]:
    """The kernel's eight words a row."""
    words = np.zeros((len(rows), 8), dtype=np.uint32)
    floats = [(row.temperature, row.top_p, row.min_p) for row in rows]
    words[:, :3] = np.array(floats, dtype=np.float32).view(np.uint32)
    for row, to in zip(rows, words, strict=True):
        to[3:] = (row.top_k, row.seed & 0xFFFFFFFF, row.seed >> 32, row.choice, row.position)
    return words.view(np.int32)
