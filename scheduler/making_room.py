"""Makes room in the step being planned: places and blocks for the more urgent, from who yields.

Who yields is decided in `preemption`; here it is done. A request that takes part in a step in
flight is not preempted: it *leaves*. It is left out of the step being planned, and has nothing in
flight when the next one is; if it must still yield then, nothing that was computed is lost.
Until then nobody less urgent than those who wait for it gets anything. Units: blocks, places.
"""

from collections import Counter
from collections.abc import Sequence

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.preemption import choose_victim, yielding_to
from blockyard.scheduler.request import Request

__all__ = ["RoomMaker"]


class RoomMaker:
    """Takes places and blocks for one step; made anew for each."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.num_leaving = 0
        """Running requests that take no part in the step, the least urgent ones."""
        self._num_coming = 0
        """Blocks that they will give."""

    def place(self, head: Request) -> bool:
        """Give the head of the queue the place of somebody who yields to it, where that can work.

        Only a place is taken; blocks follow as far as they are really needed.

        Returns:
            Whether it has one; it is off the queue then.
        """
        batch = self._batch
        yielding = yielding_to(batch.running, head)
        wanted = 1 + len(head.pending_forks)
        missing = wanted - batch.num_places_left
        if missing > sum(map(_places, yielding)) or not self._can_reach(head, yielding):
            return False
        first = len(batch.running)
        while missing > 0:
            first -= 1
            missing -= _places(batch.running[first])
        if any(victim.num_promised for victim in batch.running[first:]):
            self.num_leaving = len(batch.running) - first
            return False
        batch.queue.pop()
        for _ in range(len(batch.running) - first):
            self._preempt(batch.running[-1], 0, head)
        batch.start(head)
        return True

    def find_blocks(self, request: Request, num_tokens: int) -> tuple[int, ...]:
        """Blocks for a table of `num_tokens`, or as many as there are after others gave theirs.

        One more for a copy of its last block, while others share that: those who give way may be
        just those. Nobody gives any for what fenced blocks, or those who leave, will give soon.
        Those of parked requests go first.
        """
        batch, pool = self._batch, self._batch.pool
        while True:
            needed = request.table.blocks_short(num_tokens) + batch.holdings.shares_tail(request)
            short = needed - pool.num_available - pool.num_fenced - self._num_coming
            if short <= 0:
                break
            if not batch.reclaim(short, request):
                staying = batch.running[: len(batch.running) - self.num_leaving]
                victim = choose_victim(staying, request)
                if victim is None:
                    break
                # Behind one who leaves nobody is preempted, or it would outlast a more urgent one.
                if victim.num_promised or self.num_leaving:
                    self.num_leaving += 1
                    self._num_coming += batch.holdings.num_exclusive(victim)
                else:
                    self._preempt(victim, short, request)
        return pool.allocate(min(needed, pool.num_available)) or ()

    def _preempt(self, victim: Request, needed: int, needy: Request) -> None:
        """Preempt one for another; what was decided for it counts if it was for just that one."""
        if victim.way_out is not None and victim.way_out[0] != needy.request_id:
            victim.way_out = None
        self._batch.preempt(victim, needed)

    def _can_reach(self, head: Request, yielding: Sequence[Request]) -> bool:
        """Whether blocks for all that `head` knows are there once others have yielded theirs."""
        batch = self._batch
        pool = batch.pool
        staying = batch.running[: len(batch.running) - len(yielding)]
        reachable = (
            pool.num_available
            + pool.num_fenced
            - sum(request.table.blocks_short(request.num_known) for request in staying)
        )
        needed = head.table.blocks_short(len(head.tokens))
        giving = [*yielding, *(r for r in batch.parking.holders if r is not head)]
        held = sum(len(request.table.block_ids) for request in giving)
        if needed - len(head.path) > reachable + held:
            return False
        # What others share too comes to nobody; what they share with the head it need not have.
        holders = Counter(block for request in giving for block in request.table.block_ids)
        kept = sum(pool.references(e.block_id) > holders[e.block_id] for e in head.path)
        return needed - kept <= reachable + batch.holdings.num_held_by(giving)


def _places(request: Request) -> int:
    """Places that a running request has, those of choices to come included."""
    return 1 + len(request.pending_forks)
