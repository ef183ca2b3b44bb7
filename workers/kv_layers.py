"""Keys and values of one model in the blocks of a pool: their shape, and each layer's part.

Layout of a block `[layer][K, V][kv head][slot][head_dim]`. In int8 a float32 scale for each slot of
a head follows the numbers of the whole block, as `[layer][K, V][kv head][slot]`. Those of a draft
model, in the same layout, follow all of it. Knows neither hosts nor moves. Units: blocks, bytes.
"""

import math
from dataclasses import dataclass

import torch

from blockyard.cuda.backend import LayerKV

__all__ = ["KVGeometry", "KVLayers"]

_ALIGNMENT = 64
"""Of what lies beside, in bytes: a line of a CPU's cache, and more than a GPU reads at once."""


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """Shape of the KV of one token on this rank, and of a block; `dtype` is what is stored.

    `beside` is that of a draft model, whose keys and values lie in the same blocks behind these.
    """

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    beside: "KVGeometry | None" = None

    def __post_init__(self) -> None:
        """Refuse int8 blocks whose scales would lie at odd addresses."""
        if self.dtype is torch.int8 and self.block_size * self.head_dim % 2:
            raise ValueError(
                f"blocks of {self.block_size} slots with heads of {self.head_dim} numbers cannot "
                "be kept in int8; choose an even block size"
            )

    @property
    def scaled_slots(self) -> bool:
        """Whether each slot of a head has a scale of its own."""
        return self.dtype is torch.int8

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values over all layers, scales of its slots included."""
        scale_bytes = torch.float32.itemsize if self.scaled_slots else 0
        head_bytes = self.head_dim * self.dtype.itemsize + scale_bytes
        return 2 * self.layers * self.kv_heads * head_bytes

    @property
    def own_bytes(self) -> int:
        """Bytes of one block without what lies beside."""
        return self.block_size * self.token_bytes

    @property
    def beside_at(self) -> int:
        """Where in a block the keys and values of a draft model begin, in bytes."""
        return -(-self.own_bytes // _ALIGNMENT) * _ALIGNMENT

    @property
    def block_bytes(self) -> int:
        """Bytes of one whole block."""
        if self.beside is None:
            return self.own_bytes
        return self.beside_at + self.beside.beside_at

    def numbers(self, pool: torch.Tensor) -> torch.Tensor:
        """Keys and values in `pool`, uint8 `[blocks, block_bytes]`, a view.

        `[blocks, layers, 2 (K, V), kv heads, block_size, head_dim]`.
        """
        shape = (self.layers, 2, self.kv_heads, self.block_size, self.head_dim)
        used = math.prod(shape) * self.dtype.itemsize
        return pool[:, :used].view(self.dtype).view(len(pool), *shape)

    def slot_scales(self, pool: torch.Tensor) -> torch.Tensor | None:
        """The slots' scales in `pool`, a view: `[blocks, layers, 2, kv heads, block_size]`."""
        if not self.scaled_slots:
            return None
        shape = (self.layers, 2, self.kv_heads, self.block_size)
        used = math.prod(shape) * self.head_dim
        return pool[:, used : self.own_bytes].view(torch.float32).view(len(pool), *shape)


class KVLayers:
    """Keys and values of one model.

    Attributes:
        geometry: their shape.
        pool: uint8 `[blocks, bytes]`, the blocks from where they begin on.
        blocks: `[blocks, layers, 2 (K, V), kv heads, block_size, head_dim]`, what is stored.
        head_scales: of float8 blocks, float32 `[layers, 2 (K, V), kv heads]`: what a stored number
            is multiplied by. 1 until they are set, which must be before the first write.
        scaled: whether they were set, or there are none to set.

    Args:
        geometry, pool: see above.
    """

    def __init__(self, geometry: KVGeometry, pool: torch.Tensor) -> None:
        self.geometry = geometry
        self.pool = pool
        self.blocks = geometry.numbers(pool)
        self.head_scales: torch.Tensor | None = None
        if geometry.dtype is torch.float8_e4m3fn:
            shape = (geometry.layers, 2, geometry.kv_heads)
            self.head_scales = torch.ones(shape, device=pool.device)
        self.scaled = self.head_scales is None
        self._layers = self._layer_views()

    @classmethod
    def beside_of(cls, geometry: KVGeometry, pool: torch.Tensor) -> "KVLayers | None":
        """Those of the draft model in blocks of `geometry`; None without one."""
        if geometry.beside is None:
            return None
        return KVLayers(geometry.beside, pool[:, geometry.beside_at :])

    def layer(self, index: int) -> LayerKV:
        """One layer of every block, with its scales; views."""
        return self._layers[index]

    def set_head_scales(self, scales: torch.Tensor) -> None:
        """Give float8 blocks their scales, `[layers, 2, kv heads or 1]`."""
        assert self.head_scales is not None, "only float8 blocks have scales of heads"
        self.head_scales.copy_(scales)
        self.scaled = True

    def _layer_views(self) -> tuple[LayerKV, ...]:
        scales = self.geometry.slot_scales(self.pool)
        if scales is not None:
            by_layer = scales.unbind(1)
        elif self.head_scales is not None:
            by_layer = self.head_scales.unbind(0)
        else:
            return tuple(LayerKV(layer) for layer in self.blocks.unbind(1))
        return tuple(map(LayerKV, self.blocks.unbind(1), by_layer))
