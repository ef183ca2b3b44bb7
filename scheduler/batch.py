"""Who has a place in the batch, who waits for one, and the blocks that places hold.

Every change of a request's place goes through here: `start`, `preempt`, `leave`. `leave` is the
one door through which a request's blocks are released, and is safe to call twice. Which request
changes its place, and when, is decided elsewhere. Units: blocks, token slots.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from operator import attrgetter

from blockyard.scheduler.audit import check_slots, check_states, check_tables
from blockyard.scheduler.block_pool import BlockPool
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.ledger import RequestCounts, SlotCounts
from blockyard.scheduler.queues import WaitingQueue
from blockyard.scheduler.request import Request, RequestState

__all__ = ["Batch"]

_urgency = attrgetter("urgency")


class Batch:
    """Running requests, the queue behind them, and the pool below them."""

    def __init__(self, config: SchedulerConfig, num_blocks: int) -> None:
        self.config = config
        self.pool = BlockPool(num_blocks, config.block_size)
        self.queue = WaitingQueue()
        self.running: list[Request] = []
        """Sorted by urgency, most urgent first."""
        self.num_preemptions = 0
        self._forgotten: list[int] = []
        self._next_handle = 0
        self._filled = 0
        self._promised = 0

    @property
    def full(self) -> bool:
        """Whether every place is taken."""
        return len(self.running) >= self.config.max_running

    def start(self, request: Request) -> None:
        """Give a request taken from the queue a place.

        It holds no block and has no handle until it first takes part in a step.
        """
        request.state = RequestState.RUNNING
        insort(self.running, request, key=_urgency)

    def new_handle(self) -> int:
        """A name towards the workers that was never used before."""
        self._next_handle += 1
        return self._next_handle

    def preempt(self, request: Request) -> None:
        """Take a running request's place and blocks; it waits and recomputes them later.

        One that was given a place but took part in no step yet loses nothing and is not counted.
        """
        lost_work = request.handle is not None
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
            request.handle = None
        self._filled -= request.num_computed
        self._promised -= request.num_promised
        request.num_computed = request.num_promised = 0
        self.pool.release(request.table.clear(), request.last_step)

    def take_forgotten(self) -> tuple[int, ...]:
        """Handles that left since the last call; the workers must drop them."""
        forgotten = tuple(self._forgotten)
        self._forgotten.clear()
        return forgotten

    def promise(self, count: int) -> None:
        """A step will fill `count` slots."""
        self._promised += count

    def fulfil(self, request: Request) -> None:
        """The step in flight has filled the slots promised to a request."""
        count = request.num_promised
        request.num_computed += count
        request.num_promised = 0
        self._promised -= count
        self._filled += count

    def slot_counts(self) -> SlotCounts:
        """Slots of active blocks by state, from counters."""
        slots = self.pool.num_active * self.config.block_size
        return SlotCounts(self._filled, self._promised, slots - self._filled - self._promised)

    def request_counts(self) -> RequestCounts:
        """Requests by state, from counters."""
        return RequestCounts(len(self.running), self.queue.num_waiting, self.queue.num_parked)

    def check(self, live: Mapping[str, Request], in_flight: list[Request]) -> None:
        """Prove places, tables, slots, queue and pool. Walks everything: for checks only.

        Args:
            live: every request that is served, by id.
            in_flight: requests in the step in flight.

        Raises:
            AssertionError: naming the request or the block.
        """
        self.pool.check()
        self.queue.check()
        check_states(self.running, self.queue.members(), live, self.config.max_running)
        check_tables(self.running, self.pool.held())
        check_slots(self.running, in_flight, self.slot_counts())
