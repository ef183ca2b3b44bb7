"""The cache write in plain torch: the yardstick of the kernels in `cache_write.py`.

Rotation is computed in float32 (float64 where that comes in) and rounded once; what is stored is
the rounded number. Source: rotary positions, Su et al. 2021, in the half-split form of
transformers (number `i` turns with `i + rotated / 2`).
"""

import torch

from blockyard.cuda.backend import LayerKV
from blockyard.cuda.kv_storage import store_kv

__all__ = ["rotate", "rotate_and_write", "write"]


def rotate(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rotary positions of `heads`, `[tokens, heads, head_dim]`.

    `cosines` and `sines` are `[tokens, rotated / 2]`; numbers past `rotated` stay.
    """
    half = cosines.shape[-1]
    wide = heads if heads.dtype is torch.float64 else heads.float()
    first, second, rest = torch.split(wide, [half, half, heads.shape[-1] - 2 * half], dim=-1)
    cosines, sines = cosines[:, None], sines[:, None]
    turned = (first * cosines - second * sines, second * cosines + first * sines, rest)
    return torch.cat(turned, dim=-1).to(heads.dtype)


def rotate_and_write(
    kv: LayerKV,
    projected: torch.Tensor,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    heads: int,
    slots: torch.Tensor,
    block_size: int,
) -> torch.Tensor:
    """See `blockyard.cuda.cache_write.rotate_and_write`."""
    kv_heads, head_dim = kv.blocks.shape[2], kv.blocks.shape[4]
    rows = projected.view(len(projected), heads + 2 * kv_heads, head_dim)
    queries, keys, values = torch.split(rows, [heads, kv_heads, kv_heads], dim=1)
    write(kv, rotate(keys, cosines, sines), values, slots, block_size)
    return rotate(queries, cosines, sines).contiguous()


def write(
    kv: LayerKV, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, block_size: int
) -> None:
    """See `blockyard.cuda.cache_write.write`."""
    stored = slots >= 0
    kept = slots[stored]
    store_kv(kv, kept // block_size, kept % block_size, keys[stored], values[stored])
