"""Attention by kernels, as a backend: on a GPU, or in the emulation.

Sorts a step's requests into those that compute one token and those that compute several, and hands
each kind to its kernel. The torch twin is `ReferenceBackend`.
"""

from collections.abc import Sequence

import numpy as np
import torch

from blockyard.cuda import cache_write
from blockyard.cuda.backend import (
    AttentionBatch,
    AttentionForm,
    BlockMoves,
    FusedLayers,
    HeadShape,
    LayerKV,
    StaticDecode,
    TokenKernels,
)
from blockyard.cuda.block_copy import BlockMover
from blockyard.cuda.decode import MOST_SHARING, DecodeAttention, DecodeRows
from blockyard.cuda.fused_layers import KernelLayers
from blockyard.cuda.launch import KernelLibrary
from blockyard.cuda.logprobs import ScoredTokens, score_tokens
from blockyard.cuda.penalties import RowPenalties, penalise
from blockyard.cuda.prefill import PrefillAttention, PrefillRows
from blockyard.cuda.sampling import ChosenTokens, RowSampling, choose_tokens
from blockyard.cuda.static_decode import KernelStaticDecode

__all__ = ["KernelBackend", "KernelStep"]

_DTYPES = (torch.bfloat16, torch.float16)
_MOST_DIM = 256


class KernelBackend:
    """See `AttentionBackend`.

    Args:
        library: where kernels come from.
        device: of all tensors.
        slots: thread blocks that run at once on the device.
    """

    def __init__(self, library: KernelLibrary, device: torch.device, slots: int) -> None:
        self._library = library
        self._device = device
        self._slots = slots
        self._layers = KernelLayers(library)
        self._tokens = _Tokens(library)

    @property
    def fused(self) -> FusedLayers | None:
        """Fused layers by kernel."""
        return self._layers

    @property
    def sampler(self) -> TokenKernels | None:
        """Choosing and scoring tokens by kernel."""
        return self._tokens

    def mover(self, blocks: torch.Tensor, host_blocks: torch.Tensor) -> BlockMoves | None:
        """By kernel and DMA; None for blocks that cannot be read 16 bytes at a time."""
        contiguous = blocks.is_contiguous() and host_blocks.is_contiguous()
        if not contiguous or blocks[0].nbytes % 16 or blocks.data_ptr() % 16:
            return None
        return BlockMover(self._library, blocks, host_blocks)

    def refusal(self, shape: HeadShape, form: AttentionForm) -> str | None:
        """Why there is no kernel for layers of this shape and form."""
        if shape.dtype not in _DTYPES:
            return f"the kernels compute in bfloat16 and float16; the model is {shape.dtype}"
        if shape.kv_dtype not in (shape.dtype, torch.float8_e4m3fn):
            return (
                f"the kernels keep KV in {shape.dtype} or float8_e4m3fn; asked is {shape.kv_dtype}"
            )
        if shape.head_dim % 16 or shape.head_dim > _MOST_DIM:
            return (
                f"the head size is {shape.head_dim}; the kernels take multiples of 16 up to "
                f"{_MOST_DIM}"
            )
        return None

    def begin(self, batch: AttentionBatch) -> "KernelStep":
        """Sort the step's requests by kernel."""
        return KernelStep(self._library, batch, self._device, self._slots)

    def static_refusal(self, shape: HeadShape) -> str | None:
        """See `StaticDecodeBackend`."""
        sharing = shape.heads // shape.kv_heads
        if sharing > MOST_SHARING:
            return f"{sharing} query heads share a KV head; the decode kernel takes {MOST_SHARING}"
        return None

    def static_decode(
        self, most_rows: int, widest: int, block_size: int, null_slot: int
    ) -> StaticDecode:
        """See `StaticDecodeBackend`."""
        return KernelStaticDecode(
            self._library, self._slots, self._device, most_rows, widest, block_size, null_slot
        )


class _Tokens:
    """See `TokenKernels`."""

    def __init__(self, library: KernelLibrary) -> None:
        self._library = library

    def choose(
        self, logits: torch.Tensor, rows: Sequence[RowSampling], offset: int = 0
    ) -> ChosenTokens:
        return choose_tokens(self._library, logits, rows, offset)

    def penalise(self, scores: torch.Tensor, rows: Sequence[RowPenalties]) -> None:
        penalise(self._library, scores, rows)

    def score(
        self,
        logits: torch.Tensor,
        rows: Sequence[int],
        token_ids: Sequence[int],
        tops: Sequence[int],
    ) -> ScoredTokens:
        return score_tokens(self._library, logits, rows, token_ids, tops)


class KernelStep:
    """One step's attention; see `AttentionStep` and `FusedStep`."""

    def __init__(
        self, library: KernelLibrary, batch: AttentionBatch, device: torch.device, slots: int
    ) -> None:
        self._library = library
        self._batch = batch
        self._device = device
        self._slots = slots
        self._kinds: tuple[DecodeAttention | None, PrefillAttention | None] | None = None

    def write(self, kv: LayerKV, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store the step's keys and values at their slots."""
        batch = self._batch
        cache_write.write(self._library, kv, keys, values, batch.slots, batch.block_size)

    def rotate_and_write(
        self,
        kv: LayerKV,
        projected: torch.Tensor,
        cosines: torch.Tensor,
        sines: torch.Tensor,
        heads: int,
    ) -> torch.Tensor:
        """Rotate queries and keys, store keys and values; see `FusedStep`."""
        batch = self._batch
        return cache_write.rotate_and_write(
            self._library,
            kv,
            projected,
            cosines,
            sines,
            heads,
            batch.slots,
            batch.block_size,
        )

    def attend(self, kv: LayerKV, queries: torch.Tensor, form: AttentionForm) -> torch.Tensor:
        """Attention of every token of the step over its request's blocks."""
        if queries.stride(2) != 1 or queries.stride(1) != queries.shape[2]:
            queries = queries.contiguous()
        output = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        if self._kinds is None:  # all layers have the same heads, known only now
            self._kinds = self._sort(queries.shape[1] // kv.blocks.shape[2])
        for kind in self._kinds:
            if kind is not None:
                kind.attend(kv, queries, form, output)
        return output

    def _sort(self, sharing: int) -> tuple[DecodeAttention | None, PrefillAttention | None]:
        batch = self._batch
        single = batch.counts == 1
        if sharing > MOST_SHARING:  # more rows than a decode tile has
            single = np.zeros_like(single)
        ends = np.cumsum(batch.counts, dtype=np.int32)
        decode = prefill = None
        if single.any():
            rows = np.flatnonzero(single)
            decode = DecodeAttention(
                self._library,
                DecodeRows(
                    batch.lengths[rows],
                    ends[rows] - 1,
                    self._tables(rows),
                    batch.block_size,
                    None if batch.host_tables is None else batch.host_tables[rows],
                ),
                self._slots,
                self._device,
            )
        if not single.all():
            rows = np.flatnonzero(~single)
            counts = batch.counts[rows]
            prefill = PrefillAttention(
                self._library,
                PrefillRows(
                    counts,
                    batch.lengths[rows],
                    ends[rows] - counts,
                    self._tables(rows),
                    batch.block_size,
                ),
                self._slots,
                self._device,
            )
        return decode, prefill

    def _tables(self, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> torch.Tensor:
        tables = self._batch.block_tables
        if len(rows) == len(tables):
            return tables
        return tables[torch.from_numpy(rows).to(tables.device, non_blocking=True)]
