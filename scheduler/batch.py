"""Who has a place in the batch, who waits for one, and the blocks that places hold.

Every change of a request's place goes through here: `start`, `preempt`, `leave`. `leave` is the
one door through which all of a request's blocks are released, and is safe to call twice. Which
request changes its place, and when, is decided elsewhere. Units: blocks, tokens.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter

from blockyard.scheduler.audit import check_slots, check_states, check_tables
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.explain import SchedulerView
from blockyard.scheduler.holdings import Holdings
from blockyard.scheduler.host_blocks import HostBlocks
from blockyard.scheduler.ledger import RequestCounts
from blockyard.scheduler.lockstep import Lockstep
from blockyard.scheduler.notices import Notices
from blockyard.scheduler.parking import Parking
from blockyard.scheduler.prefix_cache import PrefixCache
from blockyard.scheduler.queues import WaitingQueue
from blockyard.scheduler.request import Request, RequestState
from blockyard.scheduler.watermark import GrowthWatermark

__all__ = ["Batch"]

_urgency = attrgetter("urgency")


class Batch:
    """Running requests, the queue behind them, and the pools below them."""

    def __init__(
        self,
        config: SchedulerConfig,
        num_blocks: int,
        num_host_blocks: int = 0,
        rates: RateMeter | None = None,
    ) -> None:
        self.config = config
        self.cache = PrefixCache(num_blocks, config.block_size, config.weight_version)
        self.pool = self.cache.pool
        self.holdings = Holdings(self.pool)
        self.parking = Parking(
            config.preemption,
            self.holdings,
            HostBlocks(num_host_blocks, config.block_size),
            rates if rates is not None else RateMeter(block_bytes=0),
        )
        self.queue = WaitingQueue()
        self.watermark = GrowthWatermark(num_blocks)
        self.running: list[Request] = []
        """Sorted by urgency, most urgent first."""
        self.lockstep = Lockstep()
        self.out_of_step: list[Request] = []
        """Those who run and are not in lockstep, sorted likewise."""
        self.one_by_one = False
        """Whether nobody decodes in lockstep, because steps check guesses of next tokens."""
        self.num_preemptions = self.num_merged = self.num_copied = self.num_recomputed = 0
        self.num_prompt_tokens = self.num_prefix_hits = 0
        self.notices = Notices()
        self._num_places = 0

    @property
    def num_places_left(self) -> int:
        """Places nobody has and none is kept for."""
        return self.config.max_running - self._num_places

    @property
    def num_waiting(self) -> int:
        """Requests without a place, parked ones too."""
        return len(self.queue) + len(self.cache.waits)

    def start(self, request: Request) -> None:
        """Give a request taken from the queue, or a new choice, a place.

        It has no handle until it first takes part in a step.
        """
        self.parking.remove_holder(request)
        request.state, request.way_out = RequestState.RUNNING, None
        self._num_places += 1 + len(request.pending_forks)
        if self.running and request < self.running[-1]:
            insort(self.running, request, key=_urgency)
        else:
            self.running.append(request)
        insort(self.out_of_step, request, key=_urgency)

    def fall_in(self, request: Request) -> None:
        """From the next plan on a running request decodes in lockstep."""
        self._remove_out_of_step(request)
        self.lockstep.join(request)

    def fall_out(self, request: Request) -> None:
        """Something else than decoding is to be done for a running request."""
        if request in self.lockstep:
            self.lockstep.leave(request)
            insort(self.out_of_step, request, key=_urgency)

    def want_fork(self, request: Request, choice: int) -> bool:
        """Let a running request begin another choice when it samples next, if there is a place."""
        if self.num_places_left < 1:
            return False
        self.fall_out(request)
        request.pending_forks.append(choice)
        self._num_places += 1
        return True

    def drop_fork(self, request: Request, choice: int) -> None:
        """A choice that has not begun is not wanted any more: give back its place."""
        request.pending_forks.remove(choice)
        self._num_places -= request.state is RequestState.RUNNING
        if request.handle is not None:
            self.notices.call_off(request.handle, choice)

    def fork(self, parent: Request, child: Request) -> None:
        """Give a new choice the place that its parent has kept, and all that its parent has."""
        if parent.handle is not None:
            self.notices.begun(parent.handle, child.choice)
        self.drop_fork(parent, child.choice)
        self.start(child)
        self.holdings.fork(parent, child)
        self.cache.fork(parent, child)

    def unshare_tail(self, request: Request, block_id: int, step: int) -> None:
        """Let a request write to its last block: to a copy of it in `block_id`, by plan `step`."""
        self.notices.copy(self.holdings.copy_tail(request, block_id, step))
        self.num_copied += 1
        if request.handle is not None:
            self.notices.replace(request.handle, len(request.table.block_ids) - 1, block_id)

    def take_found(self, request: Request) -> None:
        """Take the blocks that the prefix index has for a request about to compute."""
        self.cache.match(request)
        full = request.num_computed // self.config.block_size
        if len(request.path) > full:
            # A block that it has filled in part gives way to the whole one.
            self.holdings.shrink(request, full)
            self.holdings.append_found(request, [e.block_id for e in request.path[full:]])

    def num_restorable(self, request: Request) -> int:
        """Blocks that a request about to compute has on the host, after those in its table."""
        return self.parking.host.num_restorable(request, len(request.table.block_ids))

    def restore(self, request: Request, block_ids: tuple[int, ...], step: int) -> None:
        """Bring back into these blocks what a request has on the host; forget what is left there.

        `step` is the plan that will do it.
        """
        if block_ids:
            self.parking.host.restore(request, block_ids, step)
            self.holdings.append_restored(request, block_ids, request.num_saved)
        else:
            self.parking.host.drop(request)

    def put_back(self, request: Request) -> None:
        """A request that was to compute found no block; it keeps only what it had before."""
        if not request.is_returning:
            self.holdings.shrink(request, 0)

    def note_start(self, request: Request, now: float) -> None:
        """A request takes part in a step for the first time since it has a place."""
        self.cache.begin(request)
        if request.started_at is None:
            request.started_at = now
            request.cached_tokens = max(0, request.num_computed - request.num_brought)
            self.num_prompt_tokens += request.num_prompt
            self.num_prefix_hits += request.cached_tokens

    def preempt(self, request: Request, needed: int) -> None:
        """Take a running request's place, and blocks of its as the policy has it.

        `needed` is how many blocks are wanted now. One that was given a place but took part in no
        step yet loses nothing and is not counted.

        Raises:
            ValueError: a step in flight computes for it; it must leave first.
        """
        if request.num_promised:
            raise ValueError(f"request {request.request_id!r} is preempted while a step runs")
        lost_work = request.handle is not None
        self._vacate(request)
        if lost_work:
            request.num_preemptions += 1
            self.num_preemptions += 1
            self.parking.park(request, needed)
        elif request.is_returning:
            self.parking.add_holder(request)
        request.state = RequestState.PARKED if request.is_returning else RequestState.WAITING
        self.queue.push(request)

    def leave(self, request: Request) -> None:
        """Take away place, handle and blocks; a second call finds nothing to take."""
        self._vacate(request)
        self.parking.remove_holder(request)
        self.parking.host.drop(request)
        self.holdings.shrink(request, 0)

    def reclaim(self, short: int, needy: Request) -> bool:
        """Take blocks from a parked request that holds some, for a more urgent one.

        False when there is none.
        """
        return self.parking.take_back(short, needy)

    def resume(self, requests: Iterable[Request]) -> None:
        """Queue up requests that waited for a prefix under way."""
        for request in requests:
            self.queue.push(request)

    def remove_waiting(self, request: Request) -> None:
        """Take a request out of wherever it waits, if it does."""
        if self.queue.remove(*request.member) is None:
            self.cache.waits.remove(*request.member)

    def publish(self, request: Request) -> None:
        """Make blocks that a committed step has filled findable by others.

        A block that is in the index already is given up for the one there.
        """
        doubled, resumed = self.cache.publish(request)
        for index, block_id in doubled:
            self.holdings.exchange(request, index, block_id)
            self.num_merged += 1
            if request.handle is not None:
                self.notices.replace(request.handle, index, block_id)
        if resumed:
            self.resume(resumed)

    def reset_prefix_cache(self) -> None:
        """Forget what can be found; what was computed goes on and leaves nothing behind."""
        parked = (r for r in self.queue.members() if r.state is RequestState.PARKED)
        self.resume(self.cache.reset((*self.running, *parked)))

    def acknowledge(self, step: int) -> None:
        """Every rank has finished `step`."""
        self.pool.acknowledge(step)
        self.parking.host.acknowledge(step)

    def view(self, step: int) -> SchedulerView:
        """What an explanation reads, after `step` was planned. Sorts the queue."""
        return SchedulerView(
            step=step,
            running=self.running,
            queued=self.queue.ordered(),
            prefix_owners=self.cache.waits.owners(),
            max_running=self.config.max_running,
            num_available=self.pool.num_available,
            num_fenced=self.pool.num_fenced,
            watermark=self.watermark.blocks(len(self.running)),
            rates=self.parking.rates.model(),
        )

    def request_counts(self) -> RequestCounts:
        """Requests by state, from counters."""
        waiting = self.queue.num_waiting + len(self.cache.waits)
        return RequestCounts(len(self.running), waiting, self.queue.num_parked)

    def check(
        self, live: Collection[Request], in_flight: Sequence[tuple[Request, int, int]]
    ) -> None:
        """Prove places, tables, slots, queue and pools. Walks everything: for checks only.

        Args:
            live: every member that is served.
            in_flight: rows of the steps in flight: requests, the tokens computed for them, and
                how many of those are guesses.

        Raises:
            AssertionError: naming the request or the block.
        """
        holding = [*self.running, *self.parking.holders]
        self.cache.check(holding)
        self.queue.check()
        self.parking.check(self.running, live)
        queued = (*self.queue.members(), *self.cache.waits.members())
        check_states(self.running, queued, live, self.config.max_running, self._num_places)
        check_tables(holding, self.pool.held())
        self.lockstep.check(self.running, self.out_of_step)
        check_slots(holding, in_flight, self.holdings.counts(), self.holdings.logical_tokens)

    def _remove_out_of_step(self, request: Request) -> None:
        del self.out_of_step[bisect_left(self.out_of_step, request.urgency, key=_urgency)]

    def _vacate(self, request: Request) -> None:
        """Take away a request's place and handle; what it has computed stays in its table."""
        index = bisect_left(self.running, request.urgency, key=_urgency)
        if index < len(self.running) and self.running[index] is request:
            del self.running[index]
            self._num_places -= 1 + len(request.pending_forks)
            if request.pace is not None:
                self.lockstep.leave(request)
            else:
                self._remove_out_of_step(request)
        if request.handle is not None:
            self.notices.forget(request.handle)
            request.handle = None
        self.resume(self.cache.stop(request))
