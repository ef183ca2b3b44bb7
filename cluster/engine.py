"""The step loop of one group: plan, execute, commit, deliver.

As many steps are under way as the scheduler allows: with two, the next one is planned and sent
shortly before the one that runs ends, and neither planning nor the way to the workers costs time.

Knows no Ray, no gRPC and no sockets. All calls on the scheduler happen in one event loop, so
between two awaits the books are consistent.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from blockyard.cluster.adapters.engine_adapters import EngineAdapters
from blockyard.cluster.books.engine_listener import EngineListener
from blockyard.cluster.books.shadow_feed import ShadowFeed
from blockyard.cluster.books.step_log import StepLog
from blockyard.cluster.books.step_meter import StepMeter
from blockyard.cluster.group import Group, GroupLost
from blockyard.cluster.steps_under_way import StepsUnderWay
from blockyard.cluster.succession import Succession
from blockyard.scheduler.explain import Explanation
from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.plan import StepResult
from blockyard.scheduler.prefix_index import PrefixEvents
from blockyard.scheduler.request import RefusalCode, RequestRefused, RequestSpec, RequestUpdate
from blockyard.scheduler.restart import restarted
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.snapshot import RequestSnapshot

__all__ = ["Engine"]

logger = logging.getLogger(__name__)
_LOST = "the workers of this group were lost; try again shortly"


class Engine:
    """Drives one group.

    `deliver` gets the updates of each step. `on_lost` is called once, when no step is run any more:
    no live request gets another update then. `repair`, if given, is tried before: it answers a
    group with empty pools of the same size, or raises. `on_change`: the books have changed.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        group: Group,
        deliver: Callable[[list[RequestUpdate]], None],
        on_lost: Callable[[], None] = lambda: None,
        on_change: Callable[[], None] = lambda: None,
        repair: Callable[[], Awaitable[Group]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        """The one that steps now; another, once its blocks are gone."""
        self._group = group
        self.deliver = deliver
        self._on_lost = on_lost
        self._on_change = on_change
        self.succession = Succession(repair, self.note_change)
        self._old_keys: tuple[bytes, ...] = ()
        self._clock = clock
        slots = scheduler.ledger().blocks.total * scheduler.config.block_size
        self.shadow = ShadowFeed(slots, scheduler.config.max_context_tokens, clock)
        self._listeners: list[EngineListener] = [self.shadow]
        self.adapters = EngineAdapters(self)
        self.step_meter = StepMeter()
        self.step_log = StepLog(clock)
        self._under_way = StepsUnderWay(clock)
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._last_progress = clock()
        self._lost: str | None = None
        group.on_change(self._take_acknowledged)

    def listen(self, listener: EngineListener) -> None:
        """Tell `listener` of every request from now on."""
        self._listeners.append(listener)

    @property
    def lost(self) -> str | None:
        """Why no step is run any more, for the operator; None while the group lives."""
        return self._lost

    @property
    def num_requests(self) -> int:
        """Requests that are live."""
        return self.scheduler.num_requests

    def submit(self, spec: RequestSpec) -> int:
        """Queue a request; returns the most tokens of an answer.

        Raises:
            RequestRefused: it can never fit, too many wait, or the engine drains or is lost.
        """
        self._before_request(spec, begun=False)
        max_tokens = self.scheduler.submit(spec, self._clock())
        for listener in self._listeners:
            listener.submitted(spec)
        self._idle.clear()
        self.note_change()
        return max_tokens

    def resume(self, snapshot: RequestSnapshot) -> None:
        """Queue a request that another engine served, to go on from where it stood.

        Raises:
            RequestRefused: it can never be finished here, or the engine drains or is lost.
        """
        self._before_request(snapshot.spec, begun=True)
        self.scheduler.resume(snapshot, self._clock())
        for listener in self._listeners:
            listener.resumed(snapshot)
        self._idle.clear()
        self.note_change()

    @property
    def num_under_way(self) -> int:
        """Steps that the group was sent and that have not ended."""
        return len(self._under_way)

    def serves(self, request_id: str) -> bool:
        """Whether any choice of a request has not ended."""
        return self.scheduler.serves(request_id)

    def explain(self, request_id: str) -> tuple[Explanation, ...]:
        """Why each choice of a request waits; empty when it is not live."""
        return self.scheduler.explain(request_id)

    def abort(self, request_id: str, choice: int | None = None) -> bool:
        """Free the blocks of a request or a choice now; False if it is not live. Safe twice."""
        aborted = self.scheduler.abort(request_id, choice)
        for listener in self._listeners:
            listener.aborted(request_id, choice)
        self._note_idle()
        self.note_change()
        return aborted

    def start_drain(self) -> None:
        """Refuse newcomers from now on; what was admitted goes on to its end."""
        self.scheduler.start_drain()
        self.note_change()

    async def wait_idle(self) -> None:
        """Wait until no request is live, or none can be served any more."""
        await self._idle.wait()

    def ledger(self) -> GroupLedger:
        """The books as they stand."""
        return self.scheduler.ledger()

    def take_prefix_events(self) -> PrefixEvents:
        """What came into the prefix index and what left it since the last call."""
        events = self.scheduler.take_prefix_events()
        gone, self._old_keys = self._old_keys, ()
        return replace(events, removed=(*gone, *events.removed)) if gone else events

    def prefix_keys(self) -> tuple[bytes, ...]:
        """Keys of all blocks that can be found. Walks the index."""
        return tuple(block.key for block in self.scheduler.prefix_snapshot())

    def stalled_seconds(self) -> float:
        """How long work has waited since the last finished step; 0 when nothing waits."""
        waits = self.scheduler.has_work and not self.succession.wanted
        return self._clock() - self._last_progress if waits else 0.0

    def check(self) -> None:
        """Prove the invariants of everything the engine owns."""
        self.scheduler.check()

    async def run(self) -> None:
        """Step while there is work, sleep while there is none; returns when the group is lost."""
        try:
            while await self._repaired(reason := await self._run_until_lost()):
                pass
            self._lose(reason)
        except Exception as error:
            # The books can no longer be trusted, so nothing more is stepped.
            logger.exception("the step loop failed")
            self._lose(f"the step loop failed: {error!r}")

    async def _run_until_lost(self) -> str:
        try:
            while self._group.lost is None:
                # Whatever changes from here on is seen by the step or ends the wait behind it.
                self._changed.clear()
                if self.succession.wanted and not self._under_way:
                    self._take_over(self._group)  # its blocks are given up: nobody holds any
                    self._group.on_change(self.note_change)  # none of its steps is known here
                    self._take_over(await self.succession.carry_out())
                    self.succession.taken()
                if not await self.step():
                    self._note_idle()
                    await self._changed.wait()
            return self._group.lost
        except GroupLost as error:
            return str(error)
        finally:
            await self._under_way.abandon()

    async def _repaired(self, reason: str) -> bool:
        """Whether a new group has taken the lost one's place; every request waits for it then."""
        group = await self.succession.after_loss(reason)
        if group is None:
            return False
        self.step_meter.reformed()
        self.step_log.abandoned()
        self._take_over(group)
        return True

    def _take_over(self, group: Group) -> None:
        """Go on with a group whose pools are empty."""
        self._group = group
        self._old_keys += self.prefix_keys()
        self.scheduler = restarted(self.scheduler, self._clock(), group.weight_version)
        self._group.on_change(self._take_acknowledged)
        self._last_progress = self._clock()
        self.note_change()

    async def step(self) -> bool:
        """Schedule as far ahead as is due, then let the oldest step end, and update.

        Returns:
            False when nothing is under way and there is nothing to compute.

        Raises:
            GroupLost: a rank is gone.
        """
        while room := self.scheduler.may_plan and not self.succession.wanted:
            if not (self._under_way.is_next_due() and self._schedule()):
                break
        if not self._under_way:
            return False
        # While there is room for another step, whatever changes may bring it about.
        result = await self._under_way.end_oldest(unless=self._changed if room else None)
        if result is not None:
            self._update(result)
        return True

    def _schedule(self) -> bool:
        """Plan one more step and send it on its way; False when there is nothing to compute."""
        now = self._clock()
        if dropped := self.scheduler.expire(now):
            self.deliver(dropped)
            for update in dropped:
                for listener in self._listeners:
                    listener.aborted(update.request_id, None)
        plan = self.scheduler.plan(now)
        if plan is None:
            return False
        self._under_way.start(self._group.execute(plan), plan, now)
        self.step_meter.sent(now, self._clock())
        self.step_log.began(plan, now)
        asyncio.get_running_loop().call_soon(self.shadow.catch_up)  # once the plan is on its way
        return True

    def _update(self, result: StepResult) -> None:
        """Book the oldest step under way and tell what is new."""
        arrived = self._last_progress = self._clock()
        updates = self.scheduler.commit(result, arrived)
        self.succession.step_ended()
        self.deliver(updates)
        for listener in self._listeners:
            listener.stepped(updates)
        self.step_meter.ended(result, arrived, self._clock())
        self.step_log.ended(more=self.scheduler.has_work)
        self.note_change()

    def _before_request(self, spec: RequestSpec, begun: bool) -> None:
        if self._lost is not None:
            raise RequestRefused(RefusalCode.UNAVAILABLE, _LOST)
        self.adapters.check(spec.extras, begun)
        if not self.scheduler.has_work:
            self._last_progress = self._clock()

    def _take_acknowledged(self) -> None:
        self.scheduler.acknowledge(self._group.acknowledged_step)
        self.note_change()

    def note_change(self) -> None:
        """Something has changed that a step may come of."""
        self._changed.set()
        self._on_change()

    def _note_idle(self) -> None:
        if not self.scheduler.has_work:
            self._idle.set()

    def _lose(self, reason: str) -> None:
        logger.error("the group is lost: %s", reason)
        self._lost = reason
        self.succession.end(reason)
        self._idle.set()
        self._on_lost()
        self._on_change()
