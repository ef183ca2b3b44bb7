"""Shares out decode attention: which range of whose positions each thread block reads.

Pure numpy on the host, once a step for all layers that see the same positions. Long requests are
cut so that all thread blocks that run at once end together; pieces of one request leave partial
results that are merged. Units: tokens; a slot is a place for one thread block on the GPU.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["TILE_TOKENS", "WorkList", "plan_decode"]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

TILE_TOKENS = 64
"""Positions that a thread block of the decode kernel handles together; pieces are multiples."""

_LEAST_PIECE_TOKENS = 128
_PIECE_OVERHEAD_TOKENS = 48
"""What beginning, ending and merging a piece costs, in tokens that could be read meanwhile."""

_MOST_ROUNDS = 8
"""Most pieces a slot is given one after the other to even out a step."""


@dataclass(frozen=True, slots=True)
class WorkList:
    """One step's decode work.

    Attributes:
        work: `[items, 4]`: request, KV head, first position, position past the last; longest first.
        partials: `[items]`, where the item's partial result goes; -1 when it is the whole.
        first, count: `[requests * kv_heads]`, the partial results of each; count 0 when there are
            none to merge.
        num_partials: places for partial results.
    """

    work: Int32
    partials: Int32
    first: Int32
    count: Int32
    num_partials: int


def plan_decode(
    lengths: npt.NDArray[np.integer],
    kv_heads: int,
    slots: int,
    starts: npt.NDArray[np.integer] | None = None,
    reserved: npt.NDArray[np.integer] | None = None,
    most_items: int | None = None,
) -> WorkList:
    """Cut requests into pieces of about equal time.

    Args:
        lengths: `[requests]`, positions end here; 0 makes an item that writes zeros.
        kv_heads: thread blocks a piece, one for each KV head.
        slots: thread blocks that run at once.
        starts: `[requests]`, the first position that is seen; None means 0.
        reserved: `[requests]`, partial results of each KV head that others make, and that come
            before those planned here; None means none.
        most_items: items that there may be, at least one for each request and KV head and one more
            for each slot; None means as many as are best.
    """
    ends = lengths.astype(np.int64)
    begins = np.zeros_like(ends) if starts is None else np.minimum(starts.astype(np.int64), ends)
    # Pieces begin at multiples of a tile, so that no tile is read by two.
    aligned = begins // TILE_TOKENS * TILE_TOKENS
    tiles = -(-(ends - aligned) // TILE_TOKENS)
    most_tiles = _piece_tiles(tiles, kv_heads, slots, most_items)
    pieces = np.maximum(-(-tiles // most_tiles), 1)
    piece_tokens = -(-tiles // pieces) * TILE_TOKENS
    pieces = np.maximum(-(-tiles * TILE_TOKENS // np.maximum(piece_tokens, 1)), 1)

    items = pieces * kv_heads
    firsts = np.cumsum(items) - items
    request = np.repeat(np.arange(len(ends)), items)
    within = np.arange(len(request)) - firsts[request]
    head, piece = within // pieces[request], within % pieces[request]
    begin = aligned[request] + piece * piece_tokens[request]
    end = np.minimum(begin + piece_tokens[request], ends[request])
    begin = np.maximum(begin, begins[request])

    before = np.zeros_like(pieces) if reserved is None else reserved.astype(np.int64)
    merged = pieces + before > 1
    places = np.where(merged, pieces + before, 0)
    first_places = np.cumsum(places * kv_heads) - places * kv_heads
    first = first_places[:, None] + np.arange(kv_heads) * places[:, None]
    count = np.broadcast_to(places[:, None], first.shape)
    partials = np.where(merged[request], first[request, head] + before[request] + piece, -1)
    order = np.argsort(begin - end, kind="stable")
    return WorkList(
        work=np.stack((request, head, begin, end), axis=1).astype(np.int32)[order],
        partials=partials.astype(np.int32)[order],
        first=np.where(count > 0, first, 0).astype(np.int32).reshape(-1),
        count=count.astype(np.int32).reshape(-1),
        num_partials=int(places.sum()) * kv_heads,
    )


def _piece_tiles(tiles: Int64, kv_heads: int, slots: int, most_items: int | None) -> int:
    """Tiles of the longest piece that lets the step end soonest."""
    total, longest = int(tiles.sum()), int(tiles.max(initial=1))
    least = _LEAST_PIECE_TOKENS // TILE_TOKENS
    if longest <= least:
        return max(longest, 1)
    shares = total * kv_heads / slots / np.arange(1, _MOST_ROUNDS + 1)
    doubling = least * 2 ** np.arange(1 + int(np.log2(longest / least)))
    candidates = np.unique(
        np.clip(np.ceil(np.append(shares, [*doubling, longest])), least, longest)
    )
    pieces = np.ceil(tiles[None, :] / candidates[:, None]).sum(axis=1) * kv_heads
    if most_items is not None:
        # Rows without a tile are an item too.
        fits = pieces + kv_heads * np.count_nonzero(tiles == 0) <= most_items
        fits[-1] = True  # whole requests, which always fit
        candidates, pieces = candidates[fits], pieces[fits]
    overhead = _PIECE_OVERHEAD_TOKENS / TILE_TOKENS
    rounds = np.ceil(pieces / slots)
    ends_at = np.maximum(
        rounds * (total * kv_heads / np.maximum(pieces, 1) + overhead), candidates + overhead
    )
    # Of equals the longest piece: it leaves the fewest partial results.
    return int(candidates[len(candidates) - 1 - np.argmin(ends_at[::-1])])
