"""Attention of decode steps by kernels, in memory that stays where it is: what a CUDA graph needs.

A captured graph does again what was launched, with the arguments of then: addresses, sizes of
grids. So everything that differs between steps is written into the same memory before: slots,
block tables, and how the work is shared out. Units: tokens, block ids, rows (one request's token).
"""

from collections.abc import Hashable

import numpy as np
import torch

from blockyard.cuda import cache_write
from blockyard.cuda.backend import AttentionBatch, AttentionForm, LayerKV
from blockyard.cuda.decode import DecodeAttention, DecodeRows
from blockyard.cuda.launch import KernelLibrary
from blockyard.cuda.static_plans import StaticPlans

__all__ = ["KernelStaticDecode"]


class KernelStaticDecode:
    """See `StaticDecode`.

    Args:
        library: where kernels come from.
        slots: thread blocks that run at once.
        device: of all tensors.
        most_rows: rows of the largest step.
        widest: blocks of the longest request.
        block_size: token slots in a block.
        null_slot: where rows write that only fill up a step; no request reads it.
    """

    def __init__(
        self,
        library: KernelLibrary,
        slots: int,
        device: torch.device,
        most_rows: int,
        widest: int,
        block_size: int,
        null_slot: int,
    ) -> None:
        self._library = library
        self._num_slots = slots
        self._device = device
        self._block_size = block_size
        self._null_slot = null_slot
        self._slots = torch.full((most_rows,), null_slot, dtype=torch.int64, device=device)
        self._tables = torch.zeros(most_rows, widest, dtype=torch.int32, device=device)
        self._plans = StaticPlans(most_rows, block_size, slots, device)

    def fill(self, batch: AttentionBatch, rows: int) -> Hashable:
        """See `StaticDecode`."""
        count, width = batch.block_tables.shape
        self._slots[:count].copy_(batch.slots)
        self._slots[count:rows].fill_(self._null_slot)
        self._tables[:count, :width].copy_(batch.block_tables)
        lengths = np.zeros(rows, dtype=np.int32)  # a length of 0: its output is 0
        lengths[:count] = batch.lengths
        return self._plans.fill(lengths, batch.host_tables)

    def step(self, rows: int) -> "_StaticStep":
        """See `StaticDecode`."""
        decode = DecodeAttention(
            self._library,
            DecodeRows(
                np.zeros(rows, dtype=np.int32),  # the plans know them
                np.arange(rows, dtype=np.int32),
                self._tables[:rows],
                self._block_size,
            ),
            self._num_slots,
            self._device,
            self._plans,
        )
        return _StaticStep(self._library, decode, self._slots[:rows], self._block_size)


class _StaticStep:
    """See `AttentionStep` and `FusedStep`."""

    def __init__(
        self,
        library: KernelLibrary,
        decode: DecodeAttention,
        slots: torch.Tensor,
        block_size: int,
    ) -> None:
        self._library = library
        self._decode = decode
        self._slots = slots
        self._block_size = block_size

    def write(self, kv: LayerKV, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store the step's keys and values at their slots."""
        cache_write.write(self._library, kv, keys, values, self._slots, self._block_size)

    def rotate_and_write(
        self,
        kv: LayerKV,
        projected: torch.Tensor,
        cosines: torch.Tensor,
        sines: torch.Tensor,
        heads: int,
    ) -> torch.Tensor:
        """Rotate queries and keys, store keys and values; see `FusedStep`."""
        return cache_write.rotate_and_write(
            self._library, kv, projected, cosines, sines, heads, self._slots, self._block_size
        )

    def attend(self, kv: LayerKV, queries: torch.Tensor, form: AttentionForm) -> torch.Tensor:
        """Attention of every row over its request's blocks."""
        if queries.stride(2) != 1 or queries.stride(1) != queries.shape[2]:
            queries = queries.contiguous()
        output = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        self._decode.attend(kv, queries, form, output)
        return output
