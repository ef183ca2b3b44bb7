"""What attention over a block-structured KV cache must do, whoever does it.

A backend is asked once a step (`begin`) and answers with the step's attention, which every layer
then uses. It does not know models, requests or sampling. Units: tokens and block ids; a slot is
`block_id * block_size + offset`.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["AttentionBackend", "AttentionBatch", "AttentionStep"]


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Where the tokens of one step are and what each may see.

    Request `i` owns `counts[i]` consecutive tokens of the step. Its last one sits at position
    `lengths[i] - 1`, and each token sees the positions up to its own.

    Attributes:
        counts: int32 `[requests]`, tokens computed in this step, at least 1; on the host.
        lengths: int32 `[requests]`, tokens in the cache after this step; on the host.
        block_tables: int32 `[requests, widest]` on the device; entries past a request's own blocks
            are any valid block id and must not be trusted.
        slots: int64 `[tokens]` on the device, where each token's key and value go.
        block_size: token slots in a block.
    """

    counts: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    block_tables: torch.Tensor
    slots: torch.Tensor
    block_size: int


class AttentionStep(Protocol):
    """The attention of one step; used by every layer in turn.

    `layer` is one layer's part of the pool, `[blocks, 2 (K, V), kv heads, block_size, head_dim]`,
    not contiguous. Slots that no token was written to may hold anything, NaN included.
    """

    def write(self, layer: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store `keys` and `values`, `[tokens, kv heads, head_dim]`, at the batch's slots."""
        ...

    def attend(self, layer: torch.Tensor, queries: torch.Tensor, scale: float) -> torch.Tensor:
        """Attention of `queries`, `[tokens, heads, head_dim]`, over each request's own blocks.

        Query head `h` reads KV head `h // (heads // kv heads)`. Returns the shape of `queries`.
        """
        ...


class AttentionBackend(Protocol):
    """One way of computing attention on one kind of device."""

    def begin(self, batch: AttentionBatch) -> AttentionStep:
        """Prepare what all layers of a step share."""
        ...
