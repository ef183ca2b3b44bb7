"""What the attention kernels' structs have in common, filled in from tensors. Units: bytes."""

import numpy as np
import numpy.typing as npt
import torch

from blockyard.cuda.backend import AttentionForm, LayerKV
from blockyard.cuda.launch import address

__all__ = [
    "MULTIPROCESSOR_BYTES",
    "attention_defines",
    "layer_key",
    "padded_row_bytes",
    "set_layer",
    "set_output",
]

MULTIPROCESSOR_BYTES = 226 << 10
"""Shared memory of a multiprocessor of Hopper, less what each of two thread blocks keeps back."""


def attention_defines(
    dtype: torch.dtype, kv_dtype: torch.dtype, head_dim: int, block_size: int
) -> dict[str, int]:
    """The macros of `attention.cuh`."""
    return {
        "BF16": dtype is torch.bfloat16,
        "KV_FP8": kv_dtype is torch.float8_e4m3fn,
        "HEAD_DIM": head_dim,
        "BLOCK_SIZE": block_size,
    }


def padded_row_bytes(head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of a row in shared memory, as `attention.cuh` pads it."""
    chunks = head_dim * dtype.itemsize // 16
    return 16 * (chunks if chunks % 8 == 0 or chunks == 4 else chunks | 1)


def layer_key(kv: LayerKV, queries: torch.Tensor, form: AttentionForm) -> tuple[object, ...]:
    """What layers must have in common to be launched with the same kernels and work list."""
    return (
        queries.shape[1:],
        queries.dtype,
        kv.blocks.shape[2],
        kv.blocks.dtype,
        form.window,
        form.soft_cap is None,
    )


def set_layer(
    arguments: npt.NDArray[np.void],
    kv: LayerKV,
    queries: torch.Tensor,
    form: AttentionForm,
) -> None:
    """Put what one layer reads into a kernel's struct.

    `queries` is `[tokens, heads, head_dim]`, contiguous but for the tokens.
    """
    item = kv.blocks.element_size()
    keys = kv.blocks.data_ptr()
    arguments["queries"] = queries.data_ptr()
    arguments["keys"] = keys
    arguments["values"] = keys + kv.blocks.stride(1) * item
    if kv.scales is not None:
        arguments["key_scales"] = kv.scales.data_ptr()
        arguments["value_scales"] = kv.scales[1].data_ptr()
    arguments["block_stride"] = kv.blocks.stride(0) * item
    arguments["head_stride"] = kv.blocks.stride(2) * item
    arguments["query_stride"] = queries.stride(0)
    arguments["scale"] = form.scale
    arguments["soft_cap"] = form.soft_cap or 0.0


def set_output(arguments: npt.NDArray[np.void], form: AttentionForm, output: torch.Tensor) -> None:
    """Put where one layer's results go into a kernel's struct; who writes them adds the sinks."""
    arguments["sinks"] = address(form.sinks)
    arguments["output"] = output.data_ptr()
    arguments["output_stride"] = output.stride(0)
