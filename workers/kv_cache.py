"""The pool of KV blocks of one rank: one tensor, and how many bytes it takes.

Layout `[block][layer][K, V][kv head][slot][head_dim]`: a block is one contiguous run over all
layers, so it moves in one copy. Does not know which block belongs to whom. Units: blocks, bytes.
"""

from dataclasses import dataclass

import torch

__all__ = ["KVCache", "KVGeometry"]


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """Shape of the KV of one token on this rank, and of a block."""

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.block_size * self.token_bytes


class KVCache:
    """All KV blocks of one rank.

    The memory is not cleared: slots never written to may hold anything, NaN included.

    Attributes:
        geometry: shape of a block.
        blocks: `[num_blocks, layers, 2 (K, V), kv heads, block_size, head_dim]`.
    """

    def __init__(self, geometry: KVGeometry, num_blocks: int, device: torch.device) -> None:
        if num_blocks < 1:
            raise ValueError(f"the pool has {num_blocks} blocks; it needs at least 1")
        self.geometry = geometry
        self.blocks = torch.empty(
            num_blocks,
            geometry.layers,
            2,
            geometry.kv_heads,
            geometry.block_size,
            geometry.head_dim,
            dtype=geometry.dtype,
            device=device,
        )
        self._layers = self.blocks.unbind(1)

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self.blocks.shape[0]

    def layer(self, index: int) -> torch.Tensor:
        """One layer of every block, `[num_blocks, 2, kv heads, block_size, head_dim]`, a view."""
        return self._layers[index]
