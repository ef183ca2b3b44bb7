"""The blocks of one group: who holds how many references, which are free, which are fenced.

A released block is logically gone but not always physically free: a step that a slower rank has
not finished may still touch it. Such a block is fenced until every rank has acknowledged that
step. The pool knows block ids and step numbers; it knows nothing of requests, tables or tokens.
Units: blocks, steps.
"""

from blockyard.scheduler.ledger import BlockCounts

__all__ = ["BlockNotHeld", "BlockPool"]


class BlockNotHeld(Exception):
    """A block was released or shared that nobody holds: somebody's books are wrong."""

    def __init__(self, block_id: int, what: str) -> None:
        super().__init__(f"block {block_id} cannot be {what}: it is not held")
        self.block_id = block_id


class BlockPool:
    """Gives out block ids and takes them back through one door.

    Free blocks are reused last in, first out: the block released last is the likeliest to be
    still in a cache, few blocks are ever touched under light load, and a block read after its
    release is overwritten soonest, so such a fault shows at once instead of rarely.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}; a pool needs at least 1 block")
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; it must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks
        # Newest step that may touch each block, kept from the first release of a shared one to
        # its last: the holder that leaves last need not be the one that touched it last.
        self._fence_steps = [0] * num_blocks
        self._fenced: dict[int, list[int]] = {}
        self._num_fenced = 0
        self._acknowledged = 0

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    @property
    def num_fenced(self) -> int:
        """Blocks that become free when a step is acknowledged."""
        return self._num_fenced

    @property
    def num_active(self) -> int:
        """Blocks with at least one reference."""
        return self.num_blocks - len(self._free) - self._num_fenced

    @property
    def acknowledged(self) -> int:
        """Newest step that every rank has finished."""
        return self._acknowledged

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """Take `count` free blocks, each with one reference; all of them or None."""
        if count < 0:
            raise ValueError(f"{count} blocks asked for; the count must be 0 or more")
        if count > len(self._free):
            return None
        block_ids = tuple(self._free.pop() for _ in range(count))
        for block_id in block_ids:
            self._references[block_id] = 1
            self._fence_steps[block_id] = 0
        return block_ids

    def share(self, block_ids: tuple[int, ...]) -> None:
        """Add a reference to blocks that are held already.

        Raises:
            BlockNotHeld: naming the first block that nobody holds; nothing is changed then.
        """
        self._require_held(block_ids, "shared")
        for block_id in block_ids:
            self._references[block_id] += 1

    def release(self, block_ids: tuple[int, ...], fence_step: int) -> None:
        """Drop one reference to each block; the one way out of a table.

        A block whose last reference goes becomes free if `fence_step`, the newest step that may
        touch it, has been acknowledged, and is fenced otherwise.

        Raises:
            BlockNotHeld: naming the first block that nobody holds, or that is named twice; nothing
                is changed then.
        """
        self._require_held(block_ids, "released")
        for block_id in block_ids:
            fence = max(fence_step, self._fence_steps[block_id])
            self._fence_steps[block_id] = fence
            self._references[block_id] -= 1
            if self._references[block_id]:
                continue
            if fence <= self._acknowledged:
                self._free.append(block_id)
            else:
                self._fenced.setdefault(fence, []).append(block_id)
                self._num_fenced += 1

    def acknowledge(self, step: int) -> None:
        """Every rank has finished `step`: open its fences and all older ones.

        An older step than one acknowledged before is old news and changes nothing.
        """
        if step <= self._acknowledged:
            return
        self._acknowledged = step
        # Few steps are ever unacknowledged at once, so looking at every key is cheap.
        for fence in [fence for fence in self._fenced if fence <= step]:
            block_ids = self._fenced.pop(fence)
            self._num_fenced -= len(block_ids)
            self._free.extend(block_ids)

    def counts(self) -> BlockCounts:
        """How many blocks are in each state. None is cached: there is no prefix index yet."""
        return BlockCounts(
            total=self.num_blocks,
            free=self.num_free,
            cached=0,
            active=self.num_active,
            fenced=self.num_fenced,
        )

    def held(self) -> dict[int, int]:
        """References by block, for blocks that have any. Walks the pool: for checks only."""
        return {block: count for block, count in enumerate(self._references) if count}

    def check(self) -> None:
        """Prove that every block is in exactly one state. Walks the pool: for checks only.

        Raises:
            AssertionError: naming the block.
        """
        state: dict[int, str] = {}
        for block_id in self._free:
            _claim(state, block_id, "free")
        for fence, block_ids in self._fenced.items():
            if fence <= self._acknowledged:
                raise AssertionError(
                    f"blocks {block_ids} are fenced until step {fence}, which was acknowledged"
                )
            for block_id in block_ids:
                _claim(state, block_id, f"fenced until step {fence}")
        for block_id, references in enumerate(self._references):
            if references < 0:
                raise AssertionError(f"block {block_id} has {references} references")
            if references:
                _claim(state, block_id, f"active with {references} references")
        for block_id in range(self.num_blocks):
            if block_id not in state:
                raise AssertionError(f"block {block_id} is lost: not free, active nor fenced")
        if self._num_fenced != sum(map(len, self._fenced.values())):
            raise AssertionError(f"{self._num_fenced} blocks are counted as fenced, wrongly")

    def _require_held(self, block_ids: tuple[int, ...], what: str) -> None:
        seen: set[int] = set()
        for block_id in block_ids:
            in_pool = 0 <= block_id < self.num_blocks
            if not in_pool or not self._references[block_id] or block_id in seen:
                raise BlockNotHeld(block_id, what)
            seen.add(block_id)


def _claim(state: dict[int, str], block_id: int, name: str) -> None:
    """Note a block's state; a second state for the same block is a violation."""
    if block_id in state:
        raise AssertionError(f"block {block_id} is {state[block_id]} and also {name}")
    state[block_id] = name
