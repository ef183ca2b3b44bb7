"""The law of block states, restated from the pool's own lists: every block is in exactly one.

Slow on purpose: walks the pool. Knows nothing of how the lists came about. Units: blocks, steps.
"""

from collections.abc import Collection, Mapping, Sequence

__all__ = ["check_states"]


def check_states(
    free: Collection[int],
    cached: Collection[int],
    fenced: Mapping[int, Collection[int]],
    references: Sequence[int],
    published: Sequence[int],
) -> None:
    """Prove that each block is free, cached, fenced or held, and kept only if published.

    Args:
        free, cached: blocks in these states.
        fenced: blocks by the step until which they are fenced.
        references, published: of each block of the pool; published ones are 1.

    Raises:
        AssertionError: naming the block.
    """
    state: dict[int, str] = {}
    for block_id in free:
        _claim(state, block_id, "free")
        if published[block_id]:
            raise AssertionError(f"block {block_id} is free and published")
    for block_id in cached:
        _claim(state, block_id, "cached")
        if not published[block_id]:
            raise AssertionError(f"block {block_id} is cached and not published")
    for fence, block_ids in fenced.items():
        for block_id in block_ids:
            _claim(state, block_id, f"fenced until step {fence}")
    for block_id, count in enumerate(references):
        if count < 0:
            raise AssertionError(f"block {block_id} has {count} references")
        if count:
            _claim(state, block_id, f"active with {count} references")
    for block_id in range(len(references)):
        if block_id not in state:
            raise AssertionError(f"block {block_id} is lost: it is in no state")


def _claim(state: dict[int, str], block_id: int, name: str) -> None:
    """Note a block's state; a second state for the same block is a violation."""
    if block_id in state:
        raise AssertionError(f"block {block_id} is {state[block_id]} and also {name}")
    state[block_id] = name
