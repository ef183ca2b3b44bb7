"""The blocks of one pool: who holds how many references, which are free, fenced or kept.

A released block is logically gone but not always physically free: a step that a slower rank has
not finished may still touch it. Such a block is fenced until every rank has acknowledged that
step. A published block is kept for its content when nobody holds it, until no free one is left.
The pool knows block ids and step numbers; it knows nothing of requests, tables or tokens.
Units: blocks, steps. Every call costs by the blocks it names, not by the pool's size.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

from blockyard.scheduler.ledger import BlockCounts
from blockyard.scheduler.pool_audit import check_states

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
    release is overwritten soonest, so such a fault shows at once instead of rarely. Kept blocks
    are reused only when none is free, the one that was released first at first.

    Args:
        num_blocks: blocks in the pool.
        block_size: token slots in a block.
        on_reclaim: called with each kept block that is given to somebody else, before it is.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        on_reclaim: Callable[[int], None] = lambda block_id: None,
    ) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}; a pool needs at least 1 block")
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; it must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._on_reclaim = on_reclaim
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks
        # Newest step that may touch a held block which others have released: the holder that
        # leaves last need not be the one that touched it last.
        self._touched: dict[int, int] = {}
        # A byte each, so that the flags of a whole pool stay in a core's cache.
        self._published = bytearray(num_blocks)
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._fenced: defaultdict[int, dict[int, None]] = defaultdict(dict)
        self._num_fenced = 0
        self._acknowledged = 0

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and that are kept for their content."""
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free) + len(self._cached)

    @property
    def num_fenced(self) -> int:
        """Blocks that become available when a step is acknowledged."""
        return self._num_fenced

    @property
    def num_active(self) -> int:
        """Blocks with at least one reference."""
        return self.num_blocks - len(self._free) - len(self._cached) - self._num_fenced

    @property
    def acknowledged(self) -> int:
        """Newest step that every rank has finished."""
        return self._acknowledged

    def references(self, block_id: int) -> int:
        """How many hold a block."""
        return self._references[block_id]

    def num_cached_of(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks count as available while their content is kept."""
        return sum(map(self._cached.__contains__, block_ids))

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """Take `count` available blocks, each with one reference; all of them or None."""
        if count < 0:
            raise ValueError(f"{count} blocks asked for; the count must be 0 or more")
        if count > self.num_available:
            return None
        free = self._free
        block_ids = []
        for _ in range(count):
            block_id = free.pop() if free else self._reclaim()
            self._references[block_id] = 1
            block_ids.append(block_id)
        return tuple(block_ids)

    def share(self, block_ids: Collection[int]) -> int:
        """Add a reference to blocks that are held already, or published.

        A published block may be shared even behind its fence: what a step still does with a full
        block is read it. Its fence binds again when it is released.

        Returns:
            How many of the blocks had no reference before.

        Raises:
            BlockNotHeld: naming the first block that is neither; nothing is changed then.
        """
        references, published, cached = self._references, self._published, self._cached
        for block in block_ids:
            if not 0 <= block < self.num_blocks or not (references[block] or published[block]):
                raise BlockNotHeld(block, "shared")
        revived = 0
        for block_id in block_ids:
            if not references[block_id]:
                revived += 1
                if block_id in cached:
                    del cached[block_id]
                else:
                    self._take_from_fence(block_id)
            references[block_id] += 1
        return revived

    def release(self, block_ids: Sequence[int], fence_step: int) -> list[int]:
        """Drop one reference to each block; the one way out of a table.

        A block whose last reference goes becomes free, or is kept if it is published, when
        `fence_step`, the newest step that may touch it, has been acknowledged; it is fenced
        otherwise. Of blocks that follow one another the last must come first, so that it is also
        the first to be reclaimed.

        Returns:
            The blocks whose last reference went, in the order given.

        Raises:
            BlockNotHeld: naming the first block that nobody holds, or that is named twice; nothing
                is changed then.
        """
        if not block_ids:
            return []
        self._require_held(block_ids)
        references, touched = self._references, self._touched
        gone = []
        for block_id in block_ids:
            references[block_id] = left = references[block_id] - 1
            if not left:
                gone.append(block_id)
            elif fence_step > max(self._acknowledged, touched.get(block_id, 0)):
                touched[block_id] = fence_step
        if touched:
            for block_id in gone:
                self._put_behind(max(fence_step, touched.pop(block_id, 0)), (block_id,))
        else:
            self._put_behind(fence_step, gone)
        return gone

    def publish(self, block_id: int) -> None:
        """Keep a held block for its content once nobody holds it any more.

        Raises:
            BlockNotHeld: nobody holds it.
        """
        if not self._references[block_id]:
            raise BlockNotHeld(block_id, "published")
        self._published[block_id] = 1

    def unpublish_all(self) -> None:
        """Keep no block for its content any more. Walks the pool."""
        self._published = bytearray(self.num_blocks)
        self._free.extend(self._cached)
        self._cached.clear()

    def acknowledge(self, step: int) -> None:
        """Every rank has finished `step`: open its fences and all older ones.

        An older step than one acknowledged before is old news and changes nothing.
        """
        if step <= self._acknowledged:
            return
        self._acknowledged = step
        # Few steps are ever unacknowledged at once, so looking at every key is cheap.
        for fence in sorted(fence for fence in self._fenced if fence <= step):
            block_ids = self._fenced.pop(fence)
            self._num_fenced -= len(block_ids)
            self._open(block_ids)

    def counts(self) -> BlockCounts:
        """How many blocks are in each state."""
        return BlockCounts(
            total=self.num_blocks,
            free=self.num_free,
            cached=self.num_cached,
            active=self.num_active,
            fenced=self.num_fenced,
        )

    def unheld(self) -> tuple[bytes, list[list[int]]]:
        """Copies: a byte for each block, 1 if it is to be kept; the blocks behind each fence."""
        return bytes(self._published), [list(fence) for fence in self._fenced.values()]

    def held(self) -> dict[int, int]:
        """References by block, for blocks that have any. Walks the pool: for checks only."""
        return {block: count for block, count in enumerate(self._references) if count}

    def published(self) -> frozenset[int]:
        """Blocks that are, or will be, kept for their content. Walks the pool: for checks only."""
        return frozenset(block for block, flag in enumerate(self._published) if flag)

    def reclaim_order(self) -> list[int]:
        """Unheld published blocks, the next to go first: kept ones, then as fences open."""
        fenced = (block for fence in sorted(self._fenced) for block in self._fenced[fence])
        return [*self._cached, *(block for block in fenced if self._published[block])]

    def check(self) -> None:
        """Prove that every block is in exactly one state. Walks the pool: for checks only.

        Raises:
            AssertionError: naming the block.
        """
        check_states(
            free=self._free,
            cached=self._cached,
            fenced=self._fenced,
            references=self._references,
            published=self._published,
        )
        for fence, block_ids in self._fenced.items():
            if fence <= self._acknowledged:
                raise AssertionError(f"blocks {[*block_ids]} are fenced until {fence}, long over")
        for block_id in self._touched:
            if not self._references[block_id]:
                raise AssertionError(f"block {block_id} is remembered as shared; nobody holds it")
        if self._num_fenced != sum(map(len, self._fenced.values())):
            raise AssertionError(f"{self._num_fenced} blocks are counted as fenced, wrongly")

    def _reclaim(self) -> int:
        block_id, _ = self._cached.popitem(last=False)
        self._on_reclaim(block_id)
        self._published[block_id] = 0
        return block_id

    def _put_behind(self, fence: int, block_ids: Collection[int]) -> None:
        """Blocks whose last reference went wait for a step, if it is not acknowledged yet."""
        if fence > self._acknowledged:
            self._fenced[fence].update(dict.fromkeys(block_ids))
            self._num_fenced += len(block_ids)
        else:
            self._open(block_ids)

    def _open(self, block_ids: Iterable[int]) -> None:
        """Blocks that nothing touches any more become free, or are kept if published."""
        published, cached, free = self._published, self._cached, self._free
        for block_id in block_ids:
            if published[block_id]:
                cached[block_id] = None
            else:
                free.append(block_id)

    def _take_from_fence(self, block_id: int) -> None:
        """Let somebody hold an unheld published block that is still behind its fence."""
        fence = next(fence for fence, fenced in self._fenced.items() if block_id in fenced)
        del self._fenced[fence][block_id]
        self._num_fenced -= 1
        self._touched[block_id] = fence

    def _require_held(self, block_ids: Sequence[int]) -> None:
        """Refuse a block that is not held, or named twice."""
        held = self._references.__getitem__
        in_pool = 0 <= min(block_ids) <= max(block_ids) < self.num_blocks
        if in_pool and all(map(held, block_ids)) and len(set(block_ids)) == len(block_ids):
            return
        seen: set[int] = set()
        for block_id in block_ids:
            if not 0 <= block_id < self.num_blocks or not held(block_id) or block_id in seen:
                raise BlockNotHeld(block_id, "released")
            seen.add(block_id)
