"""What the attention kernels' structs have in common, filled in from tensors. Units: bytes."""

import numpy as np
import numpy.typing as npt
import torch

from blockyard.cuda.backend import AttentionForm, LayerKV
from blockyard.cuda.launch import address

__all__ = ["MULTIPROCESSOR_BYTES", "attention_arguments", "attention_defines", "padded_row_bytes"]

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


def attention_arguments(
    layout: np.dtype[np.void],
    kv: LayerKV,
    queries: torch.Tensor,
    form: AttentionForm,
    output: torch.Tensor,
    block_tables: torch.Tensor,
) -> npt.NDArray[np.void]:
    """A kernel's struct with all that depends on the layer and its tensors.

    `queries` and `output` are `[tokens, heads, head_dim]`, contiguous but for the tokens.
    """
    arguments = np.zeros(1, layout)
    item = kv.blocks.element_size()
    arguments["queries"] = address(queries)
    arguments["keys"] = address(kv.blocks)
    arguments["values"] = address(kv.blocks) + kv.blocks.stride(1) * item
    arguments["block_tables"] = address(block_tables)
    if kv.scales is not None:
        arguments["key_scales"] = address(kv.scales)
        arguments["value_scales"] = address(kv.scales[1])
    arguments["sinks"] = address(form.sinks)
    arguments["output"] = address(output)
    arguments["block_stride"] = kv.blocks.stride(0) * item
    arguments["head_stride"] = kv.blocks.stride(2) * item
    arguments["query_stride"] = queries.stride(0)
    arguments["output_stride"] = output.stride(0)
    arguments["table_stride"] = block_tables.stride(0)
    arguments["scale"] = form.scale
    arguments["soft_cap"] = form.soft_cap or 0.0
    return arguments
