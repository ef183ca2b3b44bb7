"""Fills one step: who computes how many tokens in it, in which blocks.

Most urgent first: places for waiting requests that others yield to, then everyone running, then
newcomers. Decides by counts alone; knows nothing of token values or of what comes back.
Units: tokens, blocks.
"""

from operator import attrgetter

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.budget import StepBudget
from blockyard.scheduler.draft import PlanDraft
from blockyard.scheduler.growth import grow, grow_all, has_slot
from blockyard.scheduler.lockstep import may_fall_in
from blockyard.scheduler.making_room import RoomMaker
from blockyard.scheduler.newcomers import find_room
from blockyard.scheduler.preemption import yielding_to
from blockyard.scheduler.request import Request, RequestState

__all__ = ["MAX_TIMES_PASSED", "StepPacker"]

_urgency = attrgetter("urgency")

MAX_TIMES_PASSED = 16
"""Younger equals that may be admitted past a request that waits for blocks."""

_MAX_SET_ASIDE = 4
"""Requests too big for now that one step looks behind."""


class StepPacker:
    """Packs one step into a draft; made anew for each step."""

    def __init__(self, batch: Batch, draft: PlanDraft, now: float) -> None:
        self._batch = batch
        self._draft = draft
        self._now = now
        self._room = RoomMaker(batch)
        self._budget = StepBudget(batch.config.max_step_tokens)
        # Whether charges matter: nobody arrives meanwhile.
        self._contended = batch.queue.contended
        # Whether a running request found fewer blocks than it needs now.
        self._short = False

    def pack(self) -> None:
        """Fill the draft. Rows stay absent when nothing can be computed."""
        batch = self._batch
        batch.resume(batch.cache.waits.expire(self._draft.step))
        self._place_urgent()
        self._advance_running()
        self._charge_lockstep()
        self._charge(0)
        # A victim of this step does not come back in it: what its blocks left over is less than
        # it held, hence less than it needs, and nobody passes a parked request.
        # Nor does anybody while others leave: what they give is somebody's already.
        if not self._room.num_leaving:
            self._admit_waiting()

    def _place_urgent(self) -> None:
        """Give waiting requests the places of those that yield to them, where that can work."""
        batch = self._batch
        while (head := batch.queue.head()) is not None and yielding_to(batch.running, head):
            batch.cache.match(head)
            if not self._held_back(head) and not self._room.place(head):
                return

    def _advance_running(self) -> None:
        """Plan tokens for running requests, most urgent first, and for those in lockstep at last.

        The latter need nothing but a token each, which is kept for them; who of them needs a block
        has its turn among the others. Behind a request that is short of blocks nobody gets new
        ones: the next to open are its.
        """
        batch, room = self._batch, self._room
        running, lockstep = batch.running, batch.lockstep
        due = lockstep.take_growing()
        if not room.num_leaving:
            due = grow_all(batch, self._draft, due)
        turns = due + batch.out_of_step
        turns.sort(key=_urgency)
        done = 0
        for request in turns:
            if request.state is not RequestState.RUNNING or request.held:
                continue  # it gave way to a more urgent one, or waits for others of its search
            if room.num_leaving and not request < running[-room.num_leaving]:
                break
            if request.pace is not None:
                if self._finds_slot(request):
                    lockstep.watch_growth(request)
                    continue
                batch.fall_out(request)
            elif may_fall_in(request) and not batch.one_by_one and self._finds_slot(request):
                batch.fall_in(request)
                continue
            done += 1
            self._advance(request, len(running) - room.num_leaving - done)
        if room.num_leaving:
            for request in running[-room.num_leaving :]:
                batch.fall_out(request)
        count = len(lockstep)
        if count:
            self._budget.spend(count)
            batch.holdings.promise(count)
            self._draft.lead(lockstep.advance(self._draft.step))

    def _finds_slot(self, request: Request) -> bool:
        """Whether a request has a slot for its newest token, or gets one in a block that is free.

        Not while somebody more urgent is short, for it is that one's block.
        """
        return has_slot(request) or (not self._short and grow(self._batch, self._draft, request))

    def _advance(self, request: Request, later: int) -> None:
        """Plan as many tokens of a running request as there are blocks for."""
        if request.handle is None:
            self._begin(request, later)
            return
        start = request.num_planned
        if start >= len(request.tokens) and (
            start + 1 >= request.end_at
            or request.sampling.searches
            or self._batch.notices.are_awaited(request.handle)
        ):
            # Its last token is under way, or one that its search may not follow, or choices that
            # it must not write before.
            return
        count = request.num_known - start
        if count > 1:
            count = self._budget.share(count, later)
        block_ids: tuple[int, ...] = ()
        end = start + count
        if end > request.table.num_writable and not self._short:
            block_ids = self._room.find_blocks(request, end)
            if count == 1:
                self._batch.watermark.observe(len(block_ids), 0)
        block_ids, room = self._make_room(request, block_ids)
        if count > room:
            self._short = True
            count = room
        if count:
            self._compute(request, count, block_ids)

    def _begin(self, request: Request, later: int) -> None:
        """Plan the first tokens of a request that has just got a place.

        It need not compute what the prefix index has, nor what was saved on the host; that comes
        back at once, or it waits until there are blocks for all of it.
        """
        batch = self._batch
        batch.take_found(request)
        num_back = batch.num_restorable(request)
        start = request.num_saved if num_back else request.num_computed
        count = self._budget.share(len(request.tokens) - start, later)
        block_ids = () if self._short else self._room.find_blocks(request, start + count)
        if num_back > len(block_ids):
            batch.pool.release(block_ids[::-1], 0)
            block_ids, room = (), 0
        else:
            batch.restore(request, block_ids[:num_back], self._draft.step)
            block_ids, room = self._make_room(request, block_ids[num_back:])
        if room:
            self._compute(request, min(count, room), block_ids)
        else:
            self._short = True
            batch.put_back(request)

    def _make_room(
        self, request: Request, block_ids: tuple[int, ...]
    ) -> tuple[tuple[int, ...], int]:
        """Make a shared last block the request's own, with the first block found.

        Returns the blocks that are left to append, and the slots to write to with them."""
        table = request.table
        if self._batch.holdings.shares_tail(request):
            if not block_ids:
                return (), 0
            self._batch.unshare_tail(request, block_ids[0], self._draft.step)
            block_ids = block_ids[1:]
        table.num_writable = table.num_slots
        room = table.num_slots + len(block_ids) * table.block_size - request.num_planned
        return block_ids, room

    def _admit_waiting(self) -> None:
        """Admit from the queue while places, tokens and blocks allow.

        A small request may pass a bigger equal that waits for blocks, but only so many times, and
        never one that was parked.
        """
        batch = self._batch
        set_aside: list[Request] = []
        while self._budget.left and batch.num_places_left:
            request = batch.queue.head()
            if request is None:
                break
            if set_aside and request.spec.priority != set_aside[0].spec.priority:
                break
            if not set_aside and self._enter(request):
                continue
            batch.cache.match(request)
            if self._held_back(request):
                continue
            batch.queue.pop()
            if self._fits(request):
                self._admit(request)
                for passed in set_aside:
                    passed.times_passed += 1
            else:
                set_aside.append(request)
            if len(set_aside) > _MAX_SET_ASIDE or not all(map(_may_be_passed, set_aside)):
                break
        for request in set_aside:
            batch.queue.push(request)

    def _enter(self, request: Request) -> bool:
        """Start the head of the queue with all that it knows, if nothing stands against it."""
        block_ids = None if self._short else find_room(self._batch, request, self._budget.left)
        if block_ids is None:
            return False
        first = len(self._draft.rows)
        self._batch.queue.pop()
        self._batch.start(request)
        self._compute(request, len(request.tokens), block_ids)
        self._charge(first)
        return True

    def _held_back(self, head: Request) -> bool:
        """Let the head of the queue wait for a prefix that is being computed, if it should."""
        batch = self._batch
        if not batch.cache.waits.hold(head, self._draft.step):
            return False
        batch.queue.pop()
        return True

    def _fits(self, request: Request) -> bool:
        """Whether a newcomer finds places, blocks for all it knows, and some to grow into.

        Running requests hold blocks for all they know: a prompt that is not finished would have
        taken every token of the step, and left none for a newcomer. When nothing runs any free
        block is a start: the whole pool will be the newcomer's.
        """
        batch = self._batch
        pool = batch.pool
        num_running = len(batch.running)
        if 1 + len(request.pending_forks) > batch.num_places_left:
            return False
        held = max(len(request.table.block_ids), len(request.path))
        needed = -(-len(request.tokens) // pool.block_size) - held
        wanted = needed + batch.watermark.blocks(num_running)
        available = pool.num_available
        if wanted + len(request.path) <= available:
            return True  # even if sharing took one for each block of its path
        available += batch.parking.num_reclaimable(request) - batch.cache.num_kept(request)
        return wanted <= available if num_running else needed <= 0 or available > 0

    def _admit(self, request: Request) -> None:
        """Start a newcomer with as many tokens as the step has left."""
        self._batch.start(request)
        first = len(self._draft.rows)
        self._begin(request, 0)
        self._charge(first)

    def _charge(self, first: int) -> None:
        """Charge tenants for what rows from `first` on compute, where turns depend on it."""
        queue = self._batch.queue
        if self._contended:
            for request, prefill, decodes in self._draft.charges(first):
                queue.charge(request, prefill, decodes)

    def _charge_lockstep(self) -> None:
        """Charge tenants for a token of each of their requests in lockstep."""
        queue = self._batch.queue
        if self._draft.stride is not None and self._contended:
            for (priority, tenant), count in self._batch.lockstep.tenants.items():
                queue.charge_tenant(priority, tenant, 0, count)

    def _compute(self, request: Request, count: int, block_ids: tuple[int, ...]) -> None:
        """Put a running request into the step."""
        batch = self._batch
        if request.handle is None:
            self._draft.admit(request, batch.notices.new_handle())
            batch.note_start(request, self._now)
        self._budget.spend(count)
        self._draft.add(request, count, block_ids)
        batch.holdings.promise(count)
        if request.pending_forks and self._draft.newest_samples:
            for choice in request.pending_forks:
                handle = batch.notices.new_handle()
                parent = self._draft.fork(request, choice, handle)
                batch.notices.await_fork(parent, choice, handle)


def _may_be_passed(request: Request) -> bool:
    """Whether a younger equal may be admitted while this one waits for blocks."""
    return request.state is RequestState.WAITING and request.times_passed < MAX_TIMES_PASSED
