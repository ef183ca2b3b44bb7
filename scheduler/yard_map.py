"""A picture of one pool, as values: what is in every block, who holds it, who waits for what.

A pool with more blocks than cells has several blocks to a cell. Units: blocks, token slots, tokens,
seconds.
"""

from dataclasses import dataclass

__all__ = ["NOBODY", "YardMap", "YardRequest"]

NOBODY = 0xFFFF
"""Owner of a cell without an active block."""


@dataclass(frozen=True, slots=True)
class YardRequest:
    """One choice of a request that is served.

    Attributes:
        request_id, choice, state, priority: who it is and where it stands.
        tenant, name: whose it is, and what its client calls it, if anything.
        prompt_tokens, output_tokens, max_tokens: what it was given, has made, and may make.
        computed_tokens: tokens whose KV is in its blocks.
        num_blocks: blocks in its table, shared ones counted.
        num_preemptions: how often it has lost its place.
        reason, behind, blocks_short, estimate_seconds: see `Explanation`; only of the first of
            those who wait, for an explanation costs by how many there are.
    """

    request_id: str
    choice: int
    state: str
    priority: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    computed_tokens: int
    num_blocks: int
    num_preemptions: int
    reason: str = ""
    behind: str = ""
    blocks_short: int = 0
    estimate_seconds: float | None = None
    tenant: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class YardMap:
    """The picture.

    Attributes:
        num_blocks: blocks in the pool.
        blocks_per_cell: blocks that one cell stands for; the last may stand for fewer.
        active, cached, fenced: a byte for each cell, the share of its blocks in that state, 255 for
            all of them; the others are free.
        filled: a byte for each cell, the share of the slots of its active blocks that hold tokens.
        owners: two bytes for each cell, little-endian: index in `requests` of who holds its first
            active block, `NOBODY` when none is active or its holder is not listed.
        requests: those who run, most urgent first, then those who wait in the order of service.
        num_requests: how many there are; more than `requests` lists when they are many.
    """

    num_blocks: int
    blocks_per_cell: int
    active: bytes
    cached: bytes
    fenced: bytes
    filled: bytes
    owners: bytes
    requests: tuple[YardRequest, ...]
    num_requests: int
