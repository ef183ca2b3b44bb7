"""Attention over blocks on a CPU, in native code: reads keys and values where they are.

The twin of `cuda/reference.py`, same contract. float32 inside, whatever goes in. Units: tokens and
block ids.
"""

import weakref
from ctypes import byref

import torch

from blockyard.cuda.backend import (
    AttentionBatch,
    AttentionForm,
    FusedLayers,
    HeadShape,
    LayerKV,
    TokenKernels,
)
from blockyard.workers.cpu.library import (
    NUMBERS,
    NativeForm,
    NativeLayer,
    NativePool,
    NativeRotary,
    native_step,
)
from blockyard.workers.cpu.token_kernels import NativeTokens

__all__ = ["NativeBackend", "NativeStepAttention", "native_form", "native_layer"]

HEAD_DIM_MULTIPLE = 16


def native_layer(kv: LayerKV) -> NativeLayer:
    """One layer's part of the pool for the library; valid while its tensors live."""
    blocks, scales = kv.blocks, kv.scales
    _, _, kv_heads, block_size, head_dim = blocks.shape
    if blocks.stride(-1) != 1 or blocks.stride(-2) != head_dim:
        raise ValueError("the numbers of a head's slots are not contiguous")
    strides = scales.stride() if scales is not None else (0, 0, 0, 1)
    return NativeLayer(
        blocks.data_ptr(),
        scales.data_ptr() if scales is not None else None,
        *blocks.stride()[:3],
        *strides[:3],
        kv_heads,
        head_dim,
        block_size,
        NUMBERS[blocks.dtype],
    )


def native_form(form: AttentionForm) -> NativeForm:
    """A layer's formula for the library; its sinks must be kept alive."""
    sinks = form.sinks.data_ptr() if form.sinks is not None else None
    return NativeForm(sinks, form.scale, form.soft_cap or 0.0, form.window or 0)


class NativeBackend:
    """Attention by the native library; see `AttentionBackend`.

    Args:
        pool: the threads it runs on.
    """

    fused: FusedLayers | None = None

    def __init__(self, pool: NativePool) -> None:
        self.pool = pool
        self.sampler: TokenKernels | None = NativeTokens(pool)

    def mover(self, blocks: torch.Tensor, host_blocks: torch.Tensor) -> None:
        """Plain copies do."""

    def refusal(self, shape: HeadShape, form: AttentionForm) -> str | None:
        """Every form is served; of shapes, heads of whole panels of 16 numbers."""
        if shape.head_dim % HEAD_DIM_MULTIPLE:
            return f"head size {shape.head_dim} is no multiple of {HEAD_DIM_MULTIPLE}"
        if shape.heads % shape.kv_heads:
            return f"{shape.heads} heads do not share {shape.kv_heads} KV heads evenly"
        if shape.kv_dtype not in NUMBERS:
            return f"keys and values of {shape.kv_dtype} are not read"
        if form.sinks is not None and form.sinks.dtype is not torch.float32:
            return f"sinks of {form.sinks.dtype} are not read"
        return None

    def begin(self, batch: AttentionBatch) -> "NativeStepAttention":
        """Take in a step; its work is cut when the first layer tells its shape."""
        return NativeStepAttention(self.pool, batch)


class NativeStepAttention:
    """One step's attention; see `AttentionStep` and `FusedStep`.

    Attributes:
        step: the step it serves, for the library; valid while this object lives.
    """

    def __init__(self, pool: NativePool, batch: AttentionBatch) -> None:
        self._pool = pool
        self.step, self._kept = native_step(
            batch.counts, batch.lengths, batch.block_tables, batch.slots
        )
        self._plans: dict[tuple[int, int], int] = {}

    def write(self, kv: LayerKV, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store the step's keys and values at their slots."""
        rows = torch.stack((keys.float(), values.float())).flatten(2)  # [2, tokens, kv heads * dim]
        layer = native_layer(kv)
        self._pool.call.by_write(
            self._pool.address,
            byref(layer),
            byref(self.step),
            rows[0].data_ptr(),
            rows[1].data_ptr(),
            rows.shape[2],
        )

    def attend(self, kv: LayerKV, queries: torch.Tensor, form: AttentionForm) -> torch.Tensor:
        """Attention of every token of the step over its request's blocks."""
        rows = queries.float().contiguous()  # [tokens, heads, dim]
        heads, dim = rows.shape[1:]
        output = torch.empty_like(rows)
        layer, native = native_layer(kv), native_form(form)
        self._pool.call.by_attend(
            self._pool.address,
            self._plan(heads, layer.kv_heads),
            byref(layer),
            byref(native),
            rows.data_ptr(),
            heads * dim,
            output.data_ptr(),
            heads * dim,
        )
        return output.to(queries.dtype)

    def rotate_and_write(
        self,
        kv: LayerKV,
        projected: torch.Tensor,
        cosines: torch.Tensor,
        sines: torch.Tensor,
        heads: int,
    ) -> torch.Tensor:
        """Turn queries and keys, store keys and values, in one pass over the projected rows."""
        rows = projected.to(torch.float32, copy=True).contiguous()
        cosines, sines = cosines.float().contiguous(), sines.float().contiguous()
        layer = native_layer(kv)
        rotary = NativeRotary(
            cosines.data_ptr(), sines.data_ptr(), None, None, None, 0.0, cosines.shape[1]
        )
        self._pool.call.by_rotate_and_write(
            self._pool.address,
            byref(layer),
            byref(self.step),
            byref(rotary),
            rows.data_ptr(),
            rows.shape[1],
            heads,
        )
        dim = layer.head_dim
        return rows[:, : heads * dim].reshape(len(rows), heads, dim).to(projected.dtype)

    def _plan(self, heads: int, kv_heads: int) -> int:
        if (heads, kv_heads) not in self._plans:
            address: int = self._pool.call.by_plan_new(
                self._pool.address, byref(self.step), heads, kv_heads
            )
            weakref.finalize(self, self._pool.call.by_plan_free, address)
            self._plans[heads, kv_heads] = address
        return self._plans[heads, kv_heads]
