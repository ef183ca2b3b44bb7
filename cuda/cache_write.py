"""Writes a step's keys and values into blocks by kernel, rotated and quantised on the way.

The torch twin is `reference_cache.py`. Units: tokens, numbers; a slot is
`block_id * block_size + offset`.
"""

import numpy as np
import numpy.typing as npt
import torch

from blockyard.cuda.alignment import check_vectors
from blockyard.cuda.backend import LayerKV
from blockyard.cuda.launch import KernelLibrary, address
from blockyard.cuda.sources import Build

__all__ = ["cache_write_build", "rotate_and_write", "write"]

_THREADS, _UNIT = 256, 16
"""A thread writes 16 numbers."""


def cache_write_build(
    dtype: torch.dtype, kv_dtype: torch.dtype, head_dim: int, block_size: int
) -> Build:
    """The build for one shape.

    Raises:
        ValueError: there is none.
    """
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"keys are {dtype}; the kernels take bfloat16 and float16")
    if kv_dtype not in (dtype, torch.float8_e4m3fn):
        raise ValueError(f"blocks are {kv_dtype}; the kernels take {dtype} and float8_e4m3fn")
    if head_dim % _UNIT:
        raise ValueError(f"heads have {head_dim} numbers; the kernels take multiples of {_UNIT}")
    return Build.of(
        "cache_write.cu",
        BF16=dtype is torch.bfloat16,
        KV_FP8=kv_dtype is torch.float8_e4m3fn,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
    )


def rotate_and_write(
    library: KernelLibrary,
    kv: LayerKV,
    projected: torch.Tensor,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    heads: int,
    slots: torch.Tensor,
    block_size: int,
) -> torch.Tensor:
    """Apply rotary positions to queries and keys; store keys and values at the slots.

    Args:
        library: where kernels come from.
        kv: where keys and values go.
        projected: `[tokens, (heads + 2 * kv heads) * head_dim]`: queries, keys, values.
        cosines, sines: float32 `[tokens, rotated / 2]`, contiguous; `rotated` is a multiple of 16.
        heads: query heads.
        slots: int64 `[tokens]`; a token with a slot below 0 is not stored.
        block_size: token slots in a block.

    Returns:
        The turned queries, `[tokens, heads, head_dim]`.

    Raises:
        ValueError: no kernel takes these shapes or dtypes.
    """
    kv_heads, head_dim = kv.blocks.shape[2], kv.blocks.shape[4]
    build = cache_write_build(projected.dtype, kv.blocks.dtype, head_dim, block_size)
    rotated = 2 * cosines.shape[-1]
    if rotated % _UNIT or rotated > head_dim:
        raise ValueError(
            f"{rotated} numbers of {head_dim} turn; the kernel takes multiples of {_UNIT}"
        )
    tokens = len(projected)
    queries = projected.new_empty(tokens, heads, head_dim)
    if not tokens:
        return queries
    check_vectors(projected, projected.stride(0))
    kernel = library.kernel(build, "rotate_and_write")
    arguments = _pool(kernel.arguments, kv, slots)
    arguments["projected"] = address(projected)
    arguments["cosines"] = address(cosines)
    arguments["sines"] = address(sines)
    arguments["queries"] = address(queries)
    arguments["projected_stride"] = projected.stride(0)
    arguments["num_tokens"] = tokens
    arguments["heads"] = heads
    arguments["rotated"] = rotated
    threads = tokens * (heads + 2 * kv_heads) * (head_dim // _UNIT)
    kernel(-(-threads // _THREADS), _THREADS, arguments)
    return queries


def write(
    library: KernelLibrary,
    kv: LayerKV,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    block_size: int,
) -> None:
    """Store keys and values as they are, `[tokens, kv heads, head_dim]`, at the slots.

    Raises:
        ValueError: no kernel takes these shapes or dtypes.
    """
    tokens, kv_heads, head_dim = keys.shape
    build = cache_write_build(keys.dtype, kv.blocks.dtype, head_dim, block_size)
    if not tokens:
        return
    for rows in (keys, values):
        check_vectors(rows, rows.stride(0), rows.stride(1))
    kernel = library.kernel(build, "write_cache")
    arguments = _pool(kernel.arguments, kv, slots)
    arguments["keys"] = address(keys)
    arguments["values"] = address(values)
    arguments["key_stride"] = keys.stride(0)
    arguments["key_head_stride"] = keys.stride(1)
    arguments["value_token_stride"] = values.stride(0)
    arguments["value_head_stride"] = values.stride(1)
    arguments["num_tokens"] = tokens
    threads = tokens * 2 * kv_heads * (head_dim // _UNIT)
    kernel(-(-threads // _THREADS), _THREADS, arguments)


def _pool(layout: np.dtype[np.void], kv: LayerKV, slots: torch.Tensor) -> npt.NDArray[np.void]:
    """What both kernels take: the pool and the slots."""
    arguments = np.zeros(1, layout)
    item = kv.blocks.element_size()
    arguments["slots"] = address(slots)
    arguments["scales"] = address(kv.scales)
    arguments["blocks"] = address(kv.blocks)
    arguments["block_stride"] = kv.blocks.stride(0) * item
    arguments["value_stride"] = kv.blocks.stride(1) * item
    arguments["head_stride"] = kv.blocks.stride(2) * item
    arguments["kv_heads"] = kv.blocks.shape[2]
    return arguments
