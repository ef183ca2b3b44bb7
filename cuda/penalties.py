"""Penalties by kernel: on scores of tokens that a request has seen, many requests in one launch.

The torch twin is in `reference_sampling.py`. Units: token ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from blockyard.cuda.launch import KernelLibrary, address
from blockyard.cuda.sources import Build
from blockyard.cuda.upload import Upload

__all__ = ["PENALTIES_BUILD", "RowPenalties", "penalise"]

PENALTIES_BUILD = Build.of("penalties.cu")

_THREADS = 256
_TOKENS_A_BLOCK = 8 * _THREADS


@dataclass(frozen=True, slots=True)
class RowPenalties:
    """One row's penalties, and what its request has seen.

    Attributes:
        row: of the scores.
        repetition: scores of tokens seen are divided by it where positive, multiplied elsewhere.
        frequency: taken off for each time a token was produced.
        presence: taken off where a token was produced.
        in_prompt: bool `[vocabulary]`, on the device.
        produced: float32 `[vocabulary]`, how often; on the device.
    """

    row: int
    repetition: float
    frequency: float
    presence: float
    in_prompt: torch.Tensor
    produced: torch.Tensor


def penalise(library: KernelLibrary, scores: torch.Tensor, rows: Sequence[RowPenalties]) -> None:
    """Change the scores of some rows in place.

    Args:
        library: where the kernel comes from.
        scores: float32 `[all rows, vocabulary]`, contiguous but for the rows.
        rows: each at most once.

    Raises:
        ValueError: scores or what was seen are of another shape or dtype.
    """
    vocabulary = scores.shape[1]
    if scores.dtype is not torch.float32 or scores.stride(1) != 1:
        raise ValueError(f"scores are {scores.dtype} with strides {scores.stride()}")
    for each in rows:
        if each.in_prompt.shape != (vocabulary,) or each.produced.shape != (vocabulary,):
            raise ValueError(
                f"what row {each.row} has seen is of {len(each.in_prompt)} and "
                f"{len(each.produced)} tokens; the scores are of {vocabulary}"
            )
    if not rows:
        return
    addresses = {
        "in_prompt": [each.in_prompt.data_ptr() for each in rows],
        "produced": [each.produced.data_ptr() for each in rows],
    }
    parameters = [(each.repetition, each.frequency, each.presence, 0.0) for each in rows]
    upload = Upload(
        scores.device,
        rows=np.array([each.row for each in rows], dtype=np.int32),
        parameters=np.array(parameters, dtype=np.float32).view(np.int32),
        **{
            name: np.array(each, dtype=np.uint64).view(np.int32) for name, each in addresses.items()
        },
    )
    kernel = library.kernel(PENALTIES_BUILD, "penalise_rows")
    arguments = np.zeros(1, kernel.arguments)
    arguments["scores"] = address(scores)
    for name in ("rows", "parameters", "in_prompt", "produced"):
        arguments[name] = upload[name]
    arguments["row_stride"] = scores.stride(0)
    arguments["vocabulary"] = vocabulary
    shares = -(-vocabulary // _TOKENS_A_BLOCK)
    arguments["shares"] = shares
    kernel(len(rows) * shares, _THREADS, arguments)
