"""Blocks in requests' tables, and what is in their slots.

The one place where tables and the pool's references change together, so that the counts of slots
follow. A block in several tables is counted once. Knows requests only by their tables and token
counts. Units: blocks, token slots.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence

from blockyard.scheduler.block_pool import BlockPool
from blockyard.scheduler.ledger import SlotCounts
from blockyard.scheduler.plan import BlockCopy
from blockyard.scheduler.request import Request

__all__ = ["Holdings"]


class Holdings:
    """What requests hold of one pool."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._size = pool.block_size
        self._filled = 0
        self._promised = 0
        self._logical = 0

    @property
    def logical_tokens(self) -> int:
        """Computed tokens that requests hold, shared ones counted for each."""
        return self._logical

    def counts(self) -> SlotCounts:
        """Slots of active blocks by state, from counters."""
        slots = self._pool.num_active * self._size
        return SlotCounts(self._filled, self._promised, slots - self._filled - self._promised)

    def promise(self, count: int) -> None:
        """A step will fill `count` slots."""
        self._promised += count

    def fulfil(self, count: int) -> None:
        """A step has filled `count` slots that were promised."""
        self._promised -= count
        self._filled += count
        self._logical += count

    def withdraw(self, count: int) -> None:
        """`count` slots that were promised are not filled after all."""
        self._promised -= count

    def append_found(self, request: Request, block_ids: Sequence[int]) -> None:
        """Share full blocks of the prefix index; the table must be full up to here."""
        revived = self._pool.share(block_ids)
        request.table.extend(block_ids)
        request.num_computed += len(block_ids) * self._size
        self._filled += revived * self._size
        self._logical += len(block_ids) * self._size

    def append_restored(self, request: Request, block_ids: Sequence[int], num_tokens: int) -> None:
        """Append allocated blocks that a copy fills up to `num_tokens` tokens of the request."""
        request.table.extend(block_ids)
        self._filled += num_tokens - request.num_computed
        self._logical += num_tokens - request.num_computed
        request.num_computed = num_tokens

    def fork(self, parent: Request, child: Request) -> None:
        """Let a child hold all blocks of its parent, with what is in them."""
        self._pool.share(parent.table.block_ids)
        child.table.extend(parent.table.block_ids)
        child.num_computed = parent.num_computed
        self._logical += child.num_computed
        full = parent.num_computed // self._size
        for table in (parent.table, child.table):
            table.num_writable = (
                full * self._size if parent.num_computed % self._size else table.num_slots
            )

    def branch(self, parent: Request, child: Request) -> None:
        """Let a child, which parts from its parent by its newest token, hold what it can of it.

        Tokens     | [0, full blocks) | the rest before the newest | the newest
        of a child | shared           | shared, if the parent is   | its own,
                   |                  | there; else computed again | not computed
        """
        known = len(child.tokens) - 1
        if parent.num_computed == known and not parent.num_promised:
            self.fork(parent, child)
        else:
            blocks = parent.table.block_ids[: min(known, parent.num_computed) // self._size]
            self._pool.share(blocks)
            child.table.extend(blocks)
            child.table.num_writable = child.table.num_slots
            child.num_computed = len(blocks) * self._size
            self._logical += child.num_computed
        child.num_saved = child.num_computed
        child.num_lost = min(known, parent.num_computed)

    def shares_tail(self, request: Request) -> bool:
        """Whether others hold the block that it writes to next."""
        table = request.table
        if table.num_writable == table.num_slots:
            return False
        return self._pool.references(table.block_ids[-1]) > 1

    def copy_tail(self, request: Request, block_id: int, step: int) -> BlockCopy:
        """Take a copy of a shared last block instead of it; `step` makes the copy."""
        table = request.table
        shared, table.block_ids[-1] = table.block_ids[-1], block_id
        table.num_writable = table.num_slots
        # It is read by that step, so nobody may have it before.
        self._pool.release((shared,), step)
        self._filled += request.num_computed % self._size
        return BlockCopy(shared, block_id)

    def exchange(self, request: Request, index: int, block_id: int) -> None:
        """Hold another block with the same content instead of the full one at `index`."""
        table = request.table.block_ids
        own, table[index] = table[index], block_id
        revived = self._pool.share((block_id,))
        gone = self._pool.release((own,), request.last_step)
        self._filled += (revived - len(gone)) * self._size

    def shrink(self, request: Request, keep: int) -> int:
        """Release a table's blocks from index `keep` on, the last first; promises are off.

        Blocks that a step may still touch are fenced by its number.

        Returns:
            How many of them nobody else holds.
        """
        table, size, computed = request.table, self._size, request.num_computed
        first = max(keep, computed // size)
        last = table.block_ids[first:]
        gone = self._pool.release(table.shrink(keep), request.last_step)
        tokens = len(gone) * size
        for index, block_id in enumerate(last, first):
            if block_id in gone:
                tokens -= size - max(0, computed - index * size)
        self._filled -= tokens
        if computed > keep * size:
            self._logical -= computed - keep * size
            request.num_computed = keep * size
        if promised := request.num_promised:
            self._promised -= promised
            request.num_promised = 0
        return len(gone)

    def num_held_by(self, requests: Collection[Request]) -> int:
        """Blocks that nobody but these requests holds."""
        if not requests:
            return 0
        held = Counter(block for request in requests for block in request.table.block_ids)
        references = self._pool.references
        return sum(count == references(block) for block, count in held.items())

    def num_exclusive(self, request: Request) -> int:
        """Blocks at the table's end that nobody else holds.

        Whoever shares a block shares all before it, so references never grow along a table.
        """
        table = request.table.block_ids
        references = self._pool.references
        return len(table) - bisect_left(table, -1, key=lambda block_id: -references(block_id))
