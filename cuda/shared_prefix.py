"""Finds requests of a step that begin with the same blocks, and shares out reading those once.

Pure numpy on the host. Units: tokens, block ids, rows (one query head of one request); a slot is a
place for one thread block on the GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["PrefixPlan", "SharedPrefix", "find_shared_prefixes", "plan_prefixes"]

Int32 = npt.NDArray[np.int32]

_TOKENS = 64
_LEAST_PIECE_TOKENS = 256
_LEAST_SAVING_TOKENS = 4096
"""Tokens that must not be read again for a group to be worth a launch of its own."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Requests (rows of the step's tables) whose first `tokens` positions are the same blocks."""

    members: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """How the prefixes are read.

    Attributes:
        work: `[items, 4]`: group, KV head, first row, piece; longest first.
        ranges: `[items, 2]`: first position, position past the last.
        first_members: `[groups + 1]`, where each group's members begin.
        members: requests, group after group.
        pieces: `[requests]`, pieces of the prefix that each has a partial result of; 0 for others.
        starts: `[requests]`, the position after the prefix; 0 for others.
    """

    work: Int32
    ranges: Int32
    first_members: Int32
    members: Int32
    pieces: Int32
    starts: Int32


def find_shared_prefixes(
    tables: Int32,
    lengths: Int32,
    block_size: int,
    least_saving_tokens: int = _LEAST_SAVING_TOKENS,
) -> list[SharedPrefix]:
    """Groups of requests that share leading full blocks, each with all that its members share.

    Args:
        tables: `[requests, widest]` block ids; entries past a request's own are not looked at.
        lengths: `[requests]`, tokens in the cache.
        block_size: token slots in a block.
        least_saving_tokens: what a group must save, in tokens read.
    """
    full = lengths // block_size
    groups: list[SharedPrefix] = []
    rows = np.flatnonzero(full > 0)
    if len(rows) < 2:
        return groups
    rows = rows[np.argsort(tables[rows, 0], kind="stable")]
    for members in np.split(rows, np.flatnonzero(np.diff(tables[rows, 0])) + 1):
        if len(members) < 2:
            continue
        most = int(full[members].min())
        equal = (tables[members[1:], :most] == tables[members[0], :most]).all(axis=0)
        shared = most if equal.all() else int(equal.argmin())
        tokens = shared * block_size
        if tokens * (len(members) - 1) >= least_saving_tokens:
            groups.append(SharedPrefix(tuple(members.tolist()), tokens))
    return groups


def plan_prefixes(
    groups: Sequence[SharedPrefix],
    num_requests: int,
    kv_heads: int,
    sharing: int,
    tile_rows: int,
    slots: int,
) -> PrefixPlan:
    """Cut the groups into tiles of rows and pieces of positions that fill the slots.

    Args:
        groups: at least one.
        num_requests: rows of the step's tables.
        kv_heads: each is computed apart.
        sharing: query heads that share a KV head.
        tile_rows: rows of a tile.
        slots: thread blocks that run at once.
    """
    tiles = [-(-len(group.members) * sharing // tile_rows) for group in groups]
    total = sum(group.tokens * count for group, count in zip(groups, tiles, strict=True))
    share = -(-total * kv_heads // slots)
    most = max(_LEAST_PIECE_TOKENS, -(-share // _TOKENS) * _TOKENS)
    pieces = np.zeros(num_requests, dtype=np.int32)
    starts = np.zeros(num_requests, dtype=np.int32)
    items: list[tuple[int, int, int, int, int, int]] = []
    for number, (group, count) in enumerate(zip(groups, tiles, strict=True)):
        begins = range(0, group.tokens, most)
        pieces[list(group.members)] = len(begins)
        starts[list(group.members)] = group.tokens
        items += [
            (number, head, tile * tile_rows, piece, begin, min(begin + most, group.tokens))
            for piece, begin in enumerate(begins)
            for head in range(kv_heads)
            for tile in range(count)
        ]
    items.sort(key=lambda item: item[4] - item[5])
    table = np.array(items, dtype=np.int32)
    counts = [len(group.members) for group in groups]
    return PrefixPlan(
        work=table[:, :4],
        ranges=table[:, 4:],
        first_members=np.cumsum([0, *counts], dtype=np.int32),
        members=np.concatenate([np.array(g.members, dtype=np.int32) for g in groups]),
        pieces=pieces,
        starts=starts,
    )
