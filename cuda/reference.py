"""Attention over blocks in plain torch: the yardstick for kernels, and what runs without them.

Requests that compute one token are batched with others of similar length; longer chunks run one
request at a time, in tiles. Query heads that share a KV head are folded into the query axis, so
keys and values are never repeated. Units: tokens, bytes.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from blockyard.cuda.backend import AttentionBatch, AttentionForm, HeadShape, LayerKV
from blockyard.cuda.kv_storage import gather_kv, store_kv

__all__ = ["ReferenceBackend", "ReferenceStep", "attend_visible"]

WORKSPACE_BYTES = 64 << 20
"""Most bytes of keys and values gathered at once, unless a single request needs more."""

MOST_PADDING = 0.25
"""Requests share a batch when the shortest has at least `1 - MOST_PADDING` of the longest."""

TILE_TOKENS = 128
"""Queries of a chunk handled at once: bounds the mask, and skips keys past the tile."""


class ReferenceBackend:
    """Attention in torch operations, on any device."""

    fused = None
    sampler = None

    def mover(self, blocks: torch.Tensor, host_blocks: torch.Tensor) -> None:
        """Plain copies do."""

    def refusal(self, shape: HeadShape, form: AttentionForm) -> str | None:
        """Every shape and form is served."""
        return None

    def begin(self, batch: AttentionBatch) -> "ReferenceStep":
        """Sort the step's requests into decode batches and chunks."""
        return ReferenceStep(batch)


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Requests with one token each that are computed together.

    tokens: `[rows]`, their index in the step; tables: `[rows, blocks]`; lengths: `[rows]`, on the
    device; shortest: the least length.
    """

    tokens: torch.Tensor
    tables: torch.Tensor
    lengths: torch.Tensor
    shortest: int
    unseen_by_window: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def unseen(self, window: int | None, positions: int) -> torch.Tensor:
        """bool `[rows, positions]`: past each request's length, or before its window."""
        if window not in self.unseen_by_window:
            at = torch.arange(positions, device=self.lengths.device)[None, :]
            unseen = at >= self.lengths[:, None]
            if window is not None:
                unseen |= at < self.lengths[:, None] - window
            self.unseen_by_window[window] = unseen
        return self.unseen_by_window[window]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Several tokens of one request. first: index in the step; start: position of that token."""

    first: int
    count: int
    start: int
    table: torch.Tensor


class ReferenceStep:
    """One step's attention; see `AttentionStep` for the contract."""

    def __init__(self, batch: AttentionBatch) -> None:
        self._batch = batch
        self._slot_blocks = batch.slots // batch.block_size
        self._slot_offsets = batch.slots % batch.block_size
        first_tokens = np.cumsum(batch.counts) - batch.counts
        self._chunks = [
            _Chunk(
                first=int(first_tokens[row]),
                count=int(batch.counts[row]),
                start=int(batch.lengths[row] - batch.counts[row]),
                table=batch.block_tables[row, : self._blocks(int(batch.lengths[row]))],
            )
            for row in np.flatnonzero(batch.counts > 1)
        ]
        rows = np.flatnonzero((batch.counts == 1) & (batch.lengths > 0))
        self._padding = torch.from_numpy(first_tokens[batch.lengths == 0])
        # Longest first: a batch then closes as soon as a row would be mostly padding.
        self._decode_rows = rows[np.argsort(-batch.lengths[rows], kind="stable")]
        self._first_tokens = first_tokens
        self._decodes: list[_Decodes] | None = None

    def write(self, kv: LayerKV, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store the step's keys and values at their slots."""
        store_kv(kv, self._slot_blocks, self._slot_offsets, keys, values)

    def attend(self, kv: LayerKV, queries: torch.Tensor, form: AttentionForm) -> torch.Tensor:
        """Attention of every token of the step over its request's blocks."""
        if self._decodes is None:  # all layers have the same shape, known only now
            token_bytes = 2 * kv.blocks.shape[2] * kv.blocks.shape[4] * queries.element_size()
            self._decodes = self._decode_batches(max(1, WORKSPACE_BYTES // token_bytes))
        output = torch.empty_like(queries)
        for decodes in self._decodes:
            output[decodes.tokens] = _attend_decodes(kv, queries, form, decodes)
        for chunk in self._chunks:
            span = slice(chunk.first, chunk.first + chunk.count)
            _attend_chunk(kv, queries[span], form, chunk, output[span])
        if len(self._padding):
            output[self._padding.to(output.device)] = 0
        return output

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._batch.block_size)

    def _decode_batches(self, most_tokens: int) -> list[_Decodes]:
        lengths = self._batch.lengths[self._decode_rows]
        batches: list[_Decodes] = []
        begin = 0
        while begin < len(lengths):
            width = self._blocks(int(lengths[begin]))
            alike = np.count_nonzero(lengths[begin:] >= (1 - MOST_PADDING) * lengths[begin])
            fitting = max(1, most_tokens // (width * self._batch.block_size))
            end = begin + min(int(alike), fitting)
            batches.append(self._decode_batch(begin, end, width))
            begin = end
        return batches

    def _decode_batch(self, begin: int, end: int, width: int) -> _Decodes:
        device = self._batch.slots.device
        rows = self._decode_rows[begin:end]
        lengths = self._batch.lengths[rows]
        return _Decodes(
            tokens=torch.from_numpy(self._first_tokens[rows]).to(device),
            tables=self._batch.block_tables[torch.from_numpy(rows).to(device), :width],
            lengths=torch.from_numpy(lengths).to(device),
            shortest=int(lengths.min()),
        )


def _attend_decodes(
    kv: LayerKV, queries: torch.Tensor, form: AttentionForm, decodes: _Decodes
) -> torch.Tensor:
    """One query a request. Returns `[rows, heads, head_dim]`."""
    # [kv heads, rows, positions, dim]
    keys, values = gather_kv(kv, decodes.tables, queries.dtype)
    unseen = decodes.unseen(form.window, keys.shape[2])
    # Unwritten slots may hold NaN, which neither a mask of -inf nor a weight of 0 would silence.
    first = decodes.shortest if form.window is None else 0
    stale = unseen[None, :, first:, None]
    keys[:, :, first:].masked_fill_(stale, 0)
    values[:, :, first:].masked_fill_(stale, 0)
    rows, heads, dim = len(decodes.tokens), queries.shape[1], queries.shape[2]
    folded = queries[decodes.tokens].view(rows, keys.shape[0], -1, dim)
    attended = attend_visible(
        folded,
        keys.transpose(0, 1),
        values.transpose(0, 1),
        unseen.logical_not()[:, None, None, :],
        form,
        None if form.sinks is None else form.sinks.view(1, keys.shape[0], -1),
    )
    return attended.reshape(rows, heads, dim)


def _attend_chunk(
    kv: LayerKV,
    queries: torch.Tensor,
    form: AttentionForm,
    chunk: _Chunk,
    output: torch.Tensor,
) -> None:
    """Several queries of one request, `[tokens, heads, head_dim]`, into `output`."""
    keys, values = gather_kv(kv, chunk.table[None], queries.dtype)
    kv_heads, dim = keys.shape[0], keys.shape[3]
    keys, values = keys[:, 0], values[:, 0]  # [kv heads, positions, dim]
    for begin in range(0, chunk.count, TILE_TOKENS):
        end = min(begin + TILE_TOKENS, chunk.count)
        tokens, seen = end - begin, chunk.start + end
        own = torch.arange(chunk.start + begin, seen, device=queries.device)[:, None]
        # Slots before the window of the first token may be gone from the table; leave them out.
        first = 0 if form.window is None else max(0, chunk.start + begin - form.window + 1)
        at = torch.arange(first, seen, device=queries.device)[None, :]
        visible = at <= own
        if form.window is not None:
            visible &= at > own - form.window
        folded = queries[begin:end].view(tokens, kv_heads, -1, dim).permute(1, 2, 0, 3)
        sharing = folded.shape[1]  # query heads that share a KV head
        sinks = form.sinks
        attended = attend_visible(
            folded.reshape(1, kv_heads, sharing * tokens, dim),
            keys[None, :, first:seen],
            values[None, :, first:seen],
            visible.repeat(sharing, 1)[None, None],
            form,
            None if sinks is None else sinks.view(1, kv_heads, -1).repeat_interleave(tokens, 2),
        )
        unfolded = attended.view(kv_heads, sharing, tokens, dim).permute(2, 0, 1, 3)
        output[begin:end] = unfolded.reshape(tokens, kv_heads * sharing, dim)


def attend_visible(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: torch.Tensor,
    form: AttentionForm,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """The formula of `AttentionForm`, dense.

    Args:
        queries: `[batch, kv heads, queries, head_dim]`.
        keys, values: `[batch, kv heads, positions, head_dim]`, finite.
        visible: bool, broadcast to `[batch, kv heads, queries, positions]`.
        form: scale and cap; the window is in `visible`.
        sinks: `[1, kv heads, queries]`, or None.

    Returns:
        The shape of `queries`.
    """
    if form.soft_cap is None and sinks is None:
        return scaled_dot_product_attention(
            queries, keys, values, attn_mask=visible, scale=form.scale
        )
    wide = torch.promote_types(queries.dtype, torch.float32)
    scores = queries.to(wide) @ keys.to(wide).transpose(2, 3) * form.scale
    if form.soft_cap is not None:
        scores = torch.tanh(scores / form.soft_cap) * form.soft_cap
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        beside = sinks[..., None].expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, beside.to(scores.dtype)), dim=3)
    weights = torch.softmax(scores, dim=3)[..., : keys.shape[2]]
    return (weights @ values.to(wide)).to(queries.dtype)
