"""Shares out prefill attention: which rows over which positions each thread block computes.

Pure numpy on the host, once a step for all layers that see the same positions. A row is one query
head of one token; the heads that share a KV head lie beside each other. Tiles are cut over the
positions only when there are too few of them to fill the GPU. Units: tokens, rows; a slot is a
place for one thread block on the GPU.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["TilePlan", "plan_tiles"]

Int32 = npt.NDArray[np.int32]

_TOKENS = 64
"""Positions that a thread block handles together; pieces begin at multiples."""

_LEAST_PIECE_TOKENS = 256


@dataclass(frozen=True, slots=True)
class TilePlan:
    """One step's prefill work.

    Attributes:
        work: `[items, 4]`: request, KV head, first row, partial result or -1; longest first.
        ranges: `[items, 2]`: first position, position past the last.
        tiles: `[cut, 4]`: request, KV head, first row, first partial result.
        num_partials_of: `[cut]`, partial results of each.
        num_partials: places for partial results.
    """

    work: Int32
    ranges: Int32
    tiles: Int32
    num_partials_of: Int32
    num_partials: int


def plan_tiles(
    counts: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int32],
    window: int | None,
    kv_heads: int,
    sharing: int,
    tile_rows: int,
    slots: int,
) -> TilePlan:
    """Cut requests into tiles of rows, and tiles into pieces where there are slots to spare.

    Args:
        counts: `[requests]`, tokens computed in this step.
        lengths: `[requests]`, tokens in the cache after it.
        window: positions that a token sees; None means all.
        kv_heads: each is computed apart.
        sharing: query heads that share a KV head.
        tile_rows: rows of a tile.
        slots: thread blocks that run at once.
    """
    tiles_of = -(-counts.astype(np.int64) * sharing // tile_rows)
    request = np.repeat(np.arange(len(counts)), tiles_of)
    firsts = np.cumsum(tiles_of) - tiles_of
    first_row = (np.arange(len(request)) - firsts[request]) * tile_rows
    last_row = np.minimum(first_row + tile_rows, counts[request] * sharing) - 1
    start = (lengths - counts)[request].astype(np.int64)
    end = start + last_row // sharing + 1
    begin = np.zeros_like(end)
    if window is not None:
        begin = np.maximum(start + first_row // sharing + 1 - window, 0)
    aligned = begin // _TOKENS * _TOKENS
    span = end - aligned

    share = span.sum() * kv_heads / slots
    piece = max(_LEAST_PIECE_TOKENS, -(-int(np.ceil(share)) // _TOKENS) * _TOKENS)
    if len(request) * kv_heads >= slots:
        piece = int(span.max(initial=1))
    # A row that only fills up the step sees nothing, and still has its output written.
    pieces = np.maximum(-(-span // piece), 1)
    piece_tokens = np.maximum(-(-span // pieces // _TOKENS), 1) * _TOKENS
    pieces = np.maximum(-(-span // piece_tokens), 1)

    # Every tile with every KV head, then every piece of each.
    tile = np.repeat(np.arange(len(request)), kv_heads)
    head = np.tile(np.arange(kv_heads), len(request))
    items_of = pieces[tile]
    owner = np.repeat(np.arange(len(tile)), items_of)
    index = np.arange(len(owner)) - (np.cumsum(items_of) - items_of)[owner]
    places = np.where(items_of > 1, items_of, 0)
    first_place = np.cumsum(places) - places
    at = tile[owner]
    low = np.maximum(aligned[at] + index * piece_tokens[at], begin[at])
    high = np.minimum(aligned[at] + (index + 1) * piece_tokens[at], end[at])
    partial = np.where(places[owner] > 0, first_place[owner] + index, -1)
    order = np.argsort(low - high, kind="stable")
    cut = np.flatnonzero(places)
    work = np.stack((request[at], head[owner], first_row[at], partial), axis=1)
    tiles = np.stack((request[tile], head, first_row[tile], first_place), axis=1)
    return TilePlan(
        work=work.astype(np.int32)[order],
        ranges=np.stack((low, high), axis=1).astype(np.int32)[order],
        tiles=tiles.astype(np.int32)[cut],
        num_partials_of=places.astype(np.int32)[cut],
        num_partials=int(places.sum()),
    )
