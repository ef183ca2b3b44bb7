"""Who has a place in the batch, who waits for one, and the blocks that places hold.

Every change of a request's place goes through here: `start`, `preempt`, `leave`. `leave` is the
one door through which a request's blocks are released, and is safe to call twice. Which request
changes its place, and when, is decided elsewhere. Units: blocks, token slots.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from operator import attrgetter

from blockyard.scheduler.audit import check_slots, check_states, check_tables
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.ledger import RequestCounts, SlotCounts
from blockyard.scheduler.plan import Replacement
from blockyard.scheduler.prefix_cache import PrefixCache
from blockyard.scheduler.queues import WaitingQueue
from blockyard.scheduler.request import Request, RequestState
from blockyard.scheduler.watermark import GrowthWatermark

__all__ = ["Batch"]

_urgency = attrgetter("urgency")


class Batch:
    """Running requests, the queue behind them, and the pool below them."""

    def __init__(self, config: SchedulerConfig, num_blocks: int) -> None:
        self.config = config
        self.cache = PrefixCache(num_blocks, config.block_size)
        self.pool = self.cache.pool
        self.queue = WaitingQueue()
        self.watermark = GrowthWatermark(num_blocks)
        self.running: list[Request] = []
        """Sorted by urgency, most urgent first."""
        self.num_preemptions = 0
        self.num_merged = self.num_recomputed = 0
        self.num_prompt_tokens = self.num_prefix_hits = 0
        self._forgotten: list[int] = []
        self._replacements: list[Replacement] = []
        self._next_handle = 0
        self._filled = 0
        self._promised = 0
        self._logical = 0

    @property
    def full(self) -> bool:
        """Whether every place is taken."""
        return len(self.running) >= self.config.max_running

    @property
    def num_waiting(self) -> int:
        """Requests without a place, parked ones too."""
        return len(self.queue) + len(self.cache.waits)

    @property
    def logical_tokens(self) -> int:
        """Computed tokens that requests hold, shared ones counted for each."""
        return self._logical

    def start(self, request: Request) -> None:
        """Give a request taken from the queue a place.

        It holds no block and has no handle until it first takes part in a step.
        """
        request.state = RequestState.RUNNING
        insort(self.running, request, key=_urgency)

    def hold_blocks(self, request: Request) -> None:
        """Take the blocks that the prefix index has for a request about to compute."""
        self.cache.match(request)
        if request.path:
            block_ids = [entry.block_id for entry in request.path]
            revived = self.pool.share(block_ids)
            request.table.extend(block_ids)
            request.num_computed = request.table.num_slots
            self._logical += request.num_computed
            self._filled += revived * self.config.block_size
        self.cache.begin(request)

    def note_start(self, request: Request, now: float) -> None:
        """A request takes part in a step for the first time since it has a place."""
        if request.started_at is None:
            request.started_at = now
            request.cached_tokens = request.num_computed
            self.num_prompt_tokens += request.num_prompt
            self.num_prefix_hits += request.num_computed
        self.num_recomputed += max(0, request.num_lost - request.num_computed)
        request.num_lost = 0

    def new_handle(self) -> int:
        """A name towards the workers that was never used before."""
        self._next_handle += 1
        return self._next_handle

    def preempt(self, request: Request) -> None:
        """Take a running request's place and blocks; it waits and recomputes them later.

        One that was given a place but took part in no step yet loses nothing and is not counted.
        """
        lost_work = request.handle is not None
        request.num_lost = request.num_computed
        self.leave(request)
        request.num_preemptions += lost_work
        self.num_preemptions += lost_work
        request.state = RequestState.PARKED if request.num_preemptions else RequestState.WAITING
        self.queue.push(request)

    def leave(self, request: Request) -> None:
        """Take away place, handle and blocks; a second call finds nothing to take.

        Blocks that a step may still touch are fenced by its number.
        """
        index = bisect_left(self.running, request.urgency, key=_urgency)
        if index < len(self.running) and self.running[index] is request:
            del self.running[index]
        if request.handle is not None:
            self._forgotten.append(request.handle)
            self._replacements = [r for r in self._replacements if r.handle != request.handle]
            request.handle = None
        self.drop_blocks(request)

    def drop_blocks(self, request: Request) -> None:
        """Release a request's whole table; what others still hold or the index keeps stays."""
        table = request.table
        # Blocks past the full ones are nobody else's; they come first, the last of all ahead.
        size = self.config.block_size
        partial = len(table.block_ids) - request.num_computed // size
        gone = self.pool.release(table.clear(), request.last_step)
        self._filled -= (len(gone) - partial) * size + request.num_computed % size
        self._logical -= request.num_computed
        self._promised -= request.num_promised
        request.num_computed = request.num_promised = 0
        self.resume(self.cache.stop(request))

    def resume(self, requests: Iterable[Request]) -> None:
        """Queue up requests that waited for a prefix under way."""
        for request in requests:
            self.queue.push(request)

    def remove_waiting(self, request_id: str) -> None:
        """Take a request out of wherever it waits, if it does."""
        if self.queue.remove(request_id) is None:
            self.cache.waits.remove(request_id)

    def take_forgotten(self) -> tuple[int, ...]:
        """Handles that left since the last call; the workers must drop them."""
        forgotten = tuple(self._forgotten)
        self._forgotten.clear()
        return forgotten

    def take_replacements(self) -> tuple[Replacement, ...]:
        """Table entries that changed since the last call, of handles that are still known."""
        replacements = tuple(self._replacements)
        self._replacements.clear()
        return replacements

    def promise(self, count: int) -> None:
        """A step will fill `count` slots."""
        self._promised += count

    def fulfil(self, count: int) -> None:
        """A step has filled `count` slots that were promised."""
        self._promised -= count
        self._filled += count
        self._logical += count

    def publish(self, request: Request) -> None:
        """Make blocks that a committed step has filled findable by others.

        A block that is in the index already is given up for the one there.
        """
        table = request.table.block_ids
        doubled, resumed = self.cache.publish(request)
        for index in doubled:
            kept, own = request.path[index].block_id, table[index]
            table[index] = kept
            revived = self.pool.share((kept,))
            gone = self.pool.release((own,), request.last_step)
            self._filled += (revived - len(gone)) * self.config.block_size
            self.num_merged += 1
            if request.handle is not None:
                self._replacements.append(Replacement(request.handle, index, kept))
        self.resume(resumed)

    def reset_prefix_cache(self) -> None:
        """Forget what can be found; what runs goes on and leaves nothing behind."""
        self.resume(self.cache.reset(self.running))

    def slot_counts(self) -> SlotCounts:
        """Slots of active blocks by state, from counters. A shared block counts once."""
        slots = self.pool.num_active * self.config.block_size
        return SlotCounts(self._filled, self._promised, slots - self._filled - self._promised)

    def request_counts(self) -> RequestCounts:
        """Requests by state, from counters."""
        waiting = self.queue.num_waiting + len(self.cache.waits)
        return RequestCounts(len(self.running), waiting, self.queue.num_parked)

    def check(self, live: Mapping[str, Request], in_flight: list[Request]) -> None:
        """Prove places, tables, slots, queue and pool. Walks everything: for checks only.

        Args:
            live: every request that is served, by id.
            in_flight: requests in the step in flight.

        Raises:
            AssertionError: naming the request or the block.
        """
        self.cache.check(self.running)
        self.queue.check()
        queued = (*self.queue.members(), *self.cache.waits.members())
        check_states(self.running, queued, live, self.config.max_running)
        check_tables(self.running, self.pool.held())
        check_slots(self.running, in_flight, self.slot_counts(), self._logical)
