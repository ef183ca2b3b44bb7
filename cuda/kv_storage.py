"""How keys and values lie in blocks, in plain torch: stored at slots, read back by block tables.

Pools of a model's own dtype hold numbers as they are. float8 pools hold them divided by a scale
that each KV head was given; int8 pools by one that each slot of a head gets when it is written.
Knows nothing of attention. Units: tokens, block ids.
"""

import torch

from blockyard.cuda.backend import LayerKV

__all__ = ["gather_kv", "store_kv"]

_MOST_FLOAT8 = 448.0
_MOST_INT8 = 127.0


def store_kv(
    kv: LayerKV,
    blocks: torch.Tensor,
    offsets: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> None:
    """Store `keys` and `values`, `[tokens, kv heads, head_dim]`.

    Args:
        kv: the layer.
        blocks, offsets: int64 `[tokens]`, each token's block and its place in it.
        keys, values: one row a token.
    """
    for part, rows in enumerate((keys, values)):
        if kv.blocks.dtype is torch.int8:
            assert kv.scales is not None, "an int8 pool has scales"
            most = rows.float().abs().amax(-1)
            scales = (most / _MOST_INT8).clamp_min(torch.finfo(torch.float32).tiny)
            kv.scales[:, part][blocks, :, offsets] = scales
            rows = (rows.float() / scales[..., None]).round()
        elif kv.scales is not None:
            rows = rows.float() / kv.scales[part][:, None]
            rows = rows.clamp(-_MOST_FLOAT8, _MOST_FLOAT8)
        _plain(kv.blocks)[:, part][blocks, :, offsets] = _plain(rows.to(kv.blocks.dtype))


def gather_kv(
    kv: LayerKV, tables: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of `tables`, `[rows, blocks]`.

    Returns:
        Each `[kv heads, rows, positions, head_dim]`, of `dtype` with scales applied.
    """
    ids = tables.long()
    by_head = _plain(kv.blocks).permute(1, 2, 0, 3, 4)[:, :, ids]
    gathered = by_head.flatten(3, 4).view(kv.blocks.dtype)
    if kv.scales is not None:
        if kv.blocks.dtype is torch.int8:
            scales = kv.scales.permute(1, 2, 0, 3)[:, :, ids].flatten(3, 4)[..., None]
        else:
            scales = kv.scales[:, :, None, None, None]
        gathered = gathered.float() * scales
    gathered = gathered.to(dtype)
    return gathered[0], gathered[1]


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes in a dtype that torch can index: it cannot index float8 everywhere."""
    return tensor.view(torch.uint8) if tensor.dtype is torch.float8_e4m3fn else tensor
