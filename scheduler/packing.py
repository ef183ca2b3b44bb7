"""Fills one step: who computes how many tokens in it, in which blocks.

Most urgent first: places for waiting requests that others yield to, then everyone running, then
newcomers. Decides by counts alone; knows nothing of token values or of what comes back.
Units: tokens, blocks.
"""

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.budget import StepBudget
from blockyard.scheduler.draft import PlanDraft
from blockyard.scheduler.preemption import choose_victim, yielding_to
from blockyard.scheduler.request import Request, RequestState

__all__ = ["MAX_TIMES_PASSED", "StepPacker"]

MAX_TIMES_PASSED = 16
"""Younger equals that may be admitted past a request that waits for blocks."""

_MAX_SET_ASIDE = 4
"""Requests too big for now that one step looks behind."""

_WATERMARK_SHARE = 32
"""At most about this part of the pool stays free at an admission, for others to grow into."""


class StepPacker:
    """Packs one step into a draft; made anew for each step."""

    def __init__(self, batch: Batch, draft: PlanDraft, now: float) -> None:
        self._batch = batch
        self._draft = draft
        self._now = now
        self._budget = StepBudget(batch.config.max_step_tokens)
        # Whether a running request found fewer blocks than it needs now.
        self._short = False

    def pack(self) -> None:
        """Fill the draft. Rows stay absent when nothing can be computed."""
        self._place_urgent()
        self._advance_running()
        # A victim of this step does not come back in it: what its blocks left over is less than
        # it held, hence less than it needs, and nobody passes a parked request.
        self._admit_waiting()

    def _place_urgent(self) -> None:
        """Give waiting requests the places of those that yield to them, where that can work.

        Only a place is taken here; blocks follow in the walk, as far as they are really needed.
        """
        batch = self._batch
        while (head := batch.queue.head()) is not None:
            yielding = yielding_to(batch.running, head)
            if not yielding:
                return
            staying = batch.running[: len(batch.running) - len(yielding)]
            reachable = (
                batch.pool.num_free
                + batch.pool.num_fenced
                + sum(len(request.table.block_ids) for request in yielding)
                - sum(request.table.blocks_short(len(request.tokens)) for request in staying)
            )
            if head.table.blocks_short(len(head.tokens)) > reachable:
                return
            batch.queue.pop()
            if batch.full:
                batch.preempt(yielding[-1])
            batch.start(head)

    def _advance_running(self) -> None:
        """Plan tokens for running requests, most urgent first.

        Behind a request that is short of blocks nobody gets new ones: the next to open are its.
        """
        running = self._batch.running
        index = 0
        while index < len(running):  # a preemption shortens the list, always behind `index`
            request = running[index]
            index += 1
            count = len(request.tokens) - request.num_computed
            if count > 1:
                count = self._budget.share(count, len(running) - index)
            block_ids: tuple[int, ...] = ()
            room = request.table.num_slots - request.num_computed
            if count > room:
                if not self._short:
                    block_ids = self._find_blocks(request, count)
                    room += len(block_ids) * request.table.block_size
                if count > room:
                    self._short = True
                    count = room
            if count:
                self._compute(request, count, block_ids)

    def _find_blocks(self, request: Request, count: int) -> tuple[int, ...]:
        """Blocks for `count` more tokens, or as many as there are after preempting others.

        Nobody is preempted for what fenced blocks will give soon.
        """
        pool = self._batch.pool
        needed = request.table.blocks_short(request.num_computed + count)
        while needed > pool.num_free + pool.num_fenced:
            victim = choose_victim(self._batch.running, request)
            if victim is None:
                break
            self._batch.preempt(victim)
        return pool.allocate(min(needed, pool.num_free)) or ()

    def _admit_waiting(self) -> None:
        """Admit from the queue while places, tokens and blocks allow.

        A small request may pass a bigger equal that waits for blocks, but only so many times, and
        never one that was parked.
        """
        batch = self._batch
        set_aside: list[Request] = []
        while self._budget.left and not batch.full:
            request = batch.queue.head()
            if request is None:
                break
            if set_aside and request.spec.priority != set_aside[0].spec.priority:
                break
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

    def _fits(self, request: Request) -> bool:
        """Whether a newcomer finds blocks for all its known tokens, and others some to grow into.

        Running requests hold blocks for all they know: a prompt that is not finished would have
        taken every token of the step, and left none for a newcomer. When nothing runs any free
        block is a start: the whole pool will be the newcomer's.
        """
        pool = self._batch.pool
        num_running = len(self._batch.running)
        if not num_running:
            return pool.num_free > 0
        watermark = min(num_running, 1 + pool.num_blocks // _WATERMARK_SHARE)
        needed = request.table.blocks_short(len(request.tokens))
        return needed + watermark <= pool.num_free

    def _admit(self, request: Request) -> None:
        """Start a newcomer with as many tokens as the step has left."""
        pool = self._batch.pool
        table = request.table
        self._batch.start(request)
        count = self._budget.share(len(request.tokens), 0)
        block_ids = pool.allocate(min(table.blocks_short(count), pool.num_free)) or ()
        self._compute(request, min(count, len(block_ids) * table.block_size), block_ids)

    def _compute(self, request: Request, count: int, block_ids: tuple[int, ...]) -> None:
        """Put a running request into the step."""
        if request.handle is None:
            self._draft.admit(request, self._batch.new_handle())
            if request.started_at is None:
                request.started_at = self._now
        self._budget.spend(count)
        self._draft.add(request, count, block_ids)
        self._batch.promise(count)


def _may_be_passed(request: Request) -> bool:
    """Whether a younger equal may be admitted while this one waits for blocks."""
    return request.state is RequestState.WAITING and request.times_passed < MAX_TIMES_PASSED
