"""Attention over blocks in plain torch: the yardstick for kernels, and what runs without them.

Requests that compute one token are batched with others of similar length; longer chunks run one
request at a time, in tiles. Query heads that share a KV head are folded into the query axis, so
keys and values are never repeated. Units: tokens, bytes.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from blockyard.cuda.backend import AttentionBatch

__all__ = ["ReferenceBackend", "ReferenceStep"]

WORKSPACE_BYTES = 64 << 20
"""Most bytes of keys and values gathered at once, unless a single request needs more."""

MOST_PADDING = 0.25
"""Requests share a batch when the shortest has at least `1 - MOST_PADDING` of the longest."""

TILE_TOKENS = 128
"""Queries of a chunk handled at once: bounds the mask, and skips keys past the tile."""


class ReferenceBackend:
    """Attention in torch operations, on any device."""

    def begin(self, batch: AttentionBatch) -> "ReferenceStep":
        """Sort the step's requests into decode batches and chunks."""
        return ReferenceStep(batch)


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Requests with one token each that are computed together.

    tokens: `[rows]`, their index in the step; tables: `[rows, blocks]`; unseen: bool
    `[rows, positions]`, true past each request's length; shortest: the least length.
    """

    tokens: torch.Tensor
    tables: torch.Tensor
    unseen: torch.Tensor
    shortest: int


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
        rows = np.flatnonzero(batch.counts == 1)
        # Longest first: a batch then closes as soon as a row would be mostly padding.
        self._decode_rows = rows[np.argsort(-batch.lengths[rows], kind="stable")]
        self._first_tokens = first_tokens
        self._decodes: list[_Decodes] | None = None

    def write(self, layer: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store the step's keys and values at their slots."""
        layer[:, 0][self._slot_blocks, :, self._slot_offsets] = keys.to(layer.dtype)
        layer[:, 1][self._slot_blocks, :, self._slot_offsets] = values.to(layer.dtype)

    def attend(self, layer: torch.Tensor, queries: torch.Tensor, scale: float) -> torch.Tensor:
        """Attention of every token of the step over its request's blocks."""
        if self._decodes is None:  # all layers have the same shape, known only now
            token_bytes = 2 * layer.shape[2] * layer.shape[4] * layer.element_size()
            self._decodes = self._decode_batches(max(1, WORKSPACE_BYTES // token_bytes))
        output = torch.empty_like(queries)
        for decodes in self._decodes:
            output[decodes.tokens] = _attend_decodes(layer, queries, scale, decodes)
        for chunk in self._chunks:
            span = slice(chunk.first, chunk.first + chunk.count)
            _attend_chunk(layer, queries[span], scale, chunk, output[span])
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
        positions = np.arange(width * self._batch.block_size)
        unseen = positions[None, :] >= lengths[:, None]
        return _Decodes(
            tokens=torch.from_numpy(self._first_tokens[rows]).to(device),
            tables=self._batch.block_tables[torch.from_numpy(rows).to(device), :width],
            unseen=torch.from_numpy(unseen).to(device),
            shortest=int(lengths.min()),
        )


def _attend_decodes(
    layer: torch.Tensor, queries: torch.Tensor, scale: float, decodes: _Decodes
) -> torch.Tensor:
    """One query a request. Returns `[rows, heads, head_dim]`."""
    keys, values = _gather(layer, decodes.tables)  # [kv heads, rows, positions, dim]
    # Unwritten slots may hold NaN, which neither a mask of -inf nor a weight of 0 would silence.
    tail = decodes.unseen[None, :, decodes.shortest :, None]
    keys[:, :, decodes.shortest :].masked_fill_(tail, 0)
    values[:, :, decodes.shortest :].masked_fill_(tail, 0)
    rows, heads, dim = len(decodes.tokens), queries.shape[1], queries.shape[2]
    folded = queries[decodes.tokens].view(rows, keys.shape[0], -1, dim)
    attended = scaled_dot_product_attention(
        folded,
        keys.transpose(0, 1).to(queries.dtype),
        values.transpose(0, 1).to(queries.dtype),
        attn_mask=decodes.unseen.logical_not()[:, None, None, :],
        scale=scale,
    )
    return attended.reshape(rows, heads, dim)


def _attend_chunk(
    layer: torch.Tensor,
    queries: torch.Tensor,
    scale: float,
    chunk: _Chunk,
    output: torch.Tensor,
) -> None:
    """Several queries of one request, `[tokens, heads, head_dim]`, into `output`."""
    keys, values = _gather(layer, chunk.table[None])
    length = chunk.start + chunk.count
    kv_heads, dim = keys.shape[0], keys.shape[3]
    keys = keys[:, 0, :length].to(queries.dtype)  # [kv heads, positions, dim]
    values = values[:, 0, :length].to(queries.dtype)
    for begin in range(0, chunk.count, TILE_TOKENS):
        end = min(begin + TILE_TOKENS, chunk.count)
        tokens, seen = end - begin, chunk.start + end
        folded = queries[begin:end].view(tokens, kv_heads, -1, dim).permute(1, 2, 0, 3)
        sharing = folded.shape[1]  # query heads that share a KV head
        own = torch.arange(chunk.start + begin, seen, device=queries.device)
        visible = torch.arange(seen, device=queries.device)[None, :] <= own[:, None]
        attended = scaled_dot_product_attention(
            folded.reshape(1, kv_heads, sharing * tokens, dim),
            keys[None, :, :seen],
            values[None, :, :seen],
            attn_mask=visible.repeat(sharing, 1)[None, None],
            scale=scale,
        )
        unfolded = attended.view(kv_heads, sharing, tokens, dim).permute(2, 0, 1, 3)
        output[begin:end] = unfolded.reshape(tokens, kv_heads * sharing, dim)


def _gather(layer: torch.Tensor, tables: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of `tables`, `[rows, blocks]`, each `[kv heads, rows, positions, dim]`."""
    by_head = layer.permute(1, 2, 0, 3, 4)[:, :, tables.long()]
    gathered = by_head.flatten(3, 4)
    return gathered[0], gathered[1]
