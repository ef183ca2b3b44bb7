"""One group's scheduler: `plan` decides a step, workers compute it, `commit` books it.

A request's computed tokens chase its known tokens; prefill, decode and recompute after a
preemption are the same walk. One step is in flight at a time. Pure: no device, no clock (`now`
is passed in, in seconds), no thread safety: one owner calls it. Units: tokens, blocks, steps.
"""

from collections.abc import Callable, Sequence

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.block_table import BlockTable
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.deadline import DeadlineWatch, least_tokens
from blockyard.scheduler.door import refuse_hopeless, refuse_now, resolve_max_tokens
from blockyard.scheduler.draft import PlanDraft
from blockyard.scheduler.endings import last_update, reason_to_end
from blockyard.scheduler.explain import Explanation, explain
from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.packing import StepPacker
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.prefix_index import PrefixEvents, StoredBlock
from blockyard.scheduler.request import (
    FinishReason,
    Request,
    RequestSpec,
    RequestState,
    RequestUpdate,
)
from blockyard.scheduler.run_ahead import run_ahead, steady_steps

__all__ = ["Scheduler", "StepOrderError"]


class StepOrderError(RuntimeError):
    """`plan`, `commit` or `acknowledge` was called out of order, or with another's result."""


class Scheduler:
    """Continuous batching with chunked prefill over one pool of blocks.

    Args:
        config: limits and policies.
        num_blocks: blocks of the pool.
        num_host_blocks: blocks of the pool in host memory, where swapped blocks go; may be 0.
        rates: what steps and copies take, as measured at load; it goes on learning here.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        num_blocks: int,
        num_host_blocks: int = 0,
        rates: RateMeter | None = None,
    ) -> None:
        self.config = config
        self._num_blocks = num_blocks
        self._batch = Batch(config, num_blocks, num_host_blocks, rates)
        self._live: dict[str, Request] = {}
        self._deadlines = DeadlineWatch()
        self._in_flight: tuple[StepPlan, PlanDraft] | None = None
        self._draining = False
        self._step = 0
        self._next_sequence = 0
        self._stalled_steps = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is running, waiting or parked."""
        return bool(self._live)

    @property
    def num_requests(self) -> int:
        """Requests running, waiting or parked."""
        return len(self._live)

    def submit(self, spec: RequestSpec, now: float) -> None:
        """Take a request in.

        Raises:
            RequestRefused: INVALID naming the field, UNAVAILABLE when draining, EXHAUSTED when too
                many wait, or so much that it cannot meet its deadline.
        """
        max_tokens = resolve_max_tokens(spec, self.config, self._num_blocks)
        num_waiting = self._batch.num_waiting
        refuse_now(spec.request_id, self._live, self._draining, num_waiting, self.config)
        request = Request(
            spec=spec,
            sequence=self._next_sequence,
            max_tokens=max_tokens,
            table=BlockTable(self.config.block_size),
            arrived_at=now,
            tokens=list(spec.prompt_token_ids),
        )
        batch = self._batch
        batch.cache.join(request)
        if spec.deadline_seconds is not None:
            rates = batch.parking.rates.model()
            batch.cache.match(request)
            refuse_hopeless(request, batch.queue.tokens_ahead(spec.priority), rates)
            self._deadlines.add(request, rates)
        self._next_sequence += 1
        self._live[spec.request_id] = request
        batch.queue.push(request)

    def abort(self, request_id: str) -> bool:
        """End a request in whatever state it is; False when it is not, or no longer, served.

        Its blocks are released at once, behind a fence if a step in flight touches them; what
        that step computes for it is ignored at the commit.
        """
        request = self._live.get(request_id)
        if request is None:
            return False
        self._end(request, FinishReason.ABORT)
        return True

    def expire(self, now: float) -> list[RequestUpdate]:
        """End requests that have not started and can no longer meet their deadline.

        Call it before `plan`: so they take no place from those that can.
        """
        missed = self._deadlines.missed(now, self._batch.parking.rates.model(), least_tokens)
        updates = []
        for request, verdict in missed:
            self._end(request, FinishReason.DEADLINE)
            updates.append(last_update(request, now, (), verdict.message))
        return updates

    def start_drain(self) -> None:
        """Take no new request; those taken are still finished."""
        self._draining = True

    def plan(self, now: float) -> StepPlan | None:
        """Decide the next step; None when nothing can be computed before something else happens.

        That is a new request, or the acknowledgement that a fence waits for.

        Raises:
            StepOrderError: the last plan was not committed.
        """
        if self._in_flight is not None:
            raise StepOrderError(f"step {self._step} is in flight; commit its result first")
        draft = PlanDraft(self._step + 1)
        StepPacker(self._batch, draft, now).pack()
        if not draft.rows:
            self._stalled_steps += self.has_work and not self._batch.pool.num_fenced
            return None
        self._step = draft.step
        batch = self._batch
        plan = draft.seal(
            batch.take_forgotten(),
            batch.take_replacements(),
            *batch.parking.host.take_moves(draft.step),
        )
        batch.num_recomputed += draft.num_recomputed
        self._in_flight = (plan, draft)
        return plan

    def commit(self, result: StepResult, now: float) -> list[RequestUpdate]:
        """Book what the step in flight computed, and tell what is new, in plan order.

        Raises:
            StepOrderError: the result is not that of the step in flight.
        """
        if self._in_flight is None or self._in_flight[0].step != result.step:
            raise StepOrderError(f"a result of step {result.step} came; that step is not in flight")
        plan, draft = self._in_flight
        if len(result.token_ids) != sum(plan.samples):
            raise StepOrderError(
                f"step {plan.step} samples {sum(plan.samples)} tokens, "
                f"its result has {len(result.token_ids)}"
            )
        self._in_flight = None
        batch = self._batch
        errors = {error.handle: error.message for error in result.errors}
        sampled = iter(result.token_ids)
        updates: list[RequestUpdate] = []
        fulfilled = 0
        for request, handle, samples in zip(draft.rows, plan.handles, plan.samples, strict=True):
            token = next(sampled) if samples else None
            if request.handle != handle:
                continue  # aborted meanwhile; its slots are off the books already
            fulfilled += request.num_promised
            request.num_computed += request.num_promised
            request.num_promised = 0
            if errors and handle in errors:
                # What it computed in this step is not to be found by others either.
                self._end(request, FinishReason.ERROR)
                updates.append(last_update(request, now, (), errors[handle]))
                continue
            if request.num_computed >= request.publish_at:
                batch.publish(request)
            if token is None:
                continue
            request.tokens.append(token)
            if request.first_token_at is None:
                request.first_token_at = now
            reason = reason_to_end(request, token)
            if reason is None:
                updates.append(RequestUpdate(request.request_id, (token,)))
            else:
                self._end(request, reason)
                updates.append(last_update(request, now, (token,)))
        batch.holdings.fulfil(fulfilled)
        batch.parking.note_copies(len(plan.swap_outs) + len(plan.swap_ins), result.copy_seconds)
        batch.parking.note_step(
            draft.num_tokens - draft.num_decodes,
            draft.num_decodes,
            draft.num_recomputed,
            result.compute_seconds,
        )
        return updates

    def acknowledge(self, step: int) -> None:
        """Every rank has finished `step`: blocks fenced until then become free.

        Raises:
            StepOrderError: no such step was planned yet.
        """
        if step > self._step:
            raise StepOrderError(f"step {step} is acknowledged, the newest planned is {self._step}")
        self._batch.acknowledge(step)

    def steady_steps(self) -> int:
        """How many steps from now on `run_ahead` may do; 0 unless all who are here decode."""
        return 0 if self._in_flight is not None else steady_steps(self._batch)

    def run_ahead(self, seconds: Sequence[float], answer: Callable[[str], int]) -> None:
        """Do one steady step for each length in `seconds`; for simulations, nobody is told.

        The books are those after as many calls of `plan`, `commit` and `acknowledge`. `answer`
        tells the token of a request id.
        """
        self._step += len(seconds)
        run_ahead(self._batch, self._step, seconds, answer)

    def reset_prefix_cache(self) -> None:
        """Forget all blocks that could be found, such as after a change that extras do not tell.

        What runs goes on with what it has computed, and leaves nothing to be found.
        """
        self._batch.reset_prefix_cache()

    def take_prefix_events(self) -> PrefixEvents:
        """What came into the prefix index and what left it since the last call."""
        return self._batch.cache.index.take_events()

    def prefix_snapshot(self) -> tuple[StoredBlock, ...]:
        """All that the prefix index holds, for who has not followed the events."""
        return self._batch.cache.index.snapshot()

    def ledger(self) -> GroupLedger:
        """The books at this moment, from counters: costs the same however many requests run."""
        return GroupLedger(
            blocks=self._batch.pool.counts(),
            slots=self._batch.holdings.counts(),
            requests=self._batch.request_counts(),
            block_size=self.config.block_size,
            step=self._step,
            preemptions=self._batch.num_preemptions,
            stalled_steps=self._stalled_steps,
            logical_tokens=self._batch.holdings.logical_tokens,
            prompt_tokens=self._batch.num_prompt_tokens,
            prefix_hit_tokens=self._batch.num_prefix_hits,
            recomputed_tokens=self._batch.num_recomputed,
            merged_blocks=self._batch.num_merged,
            host_blocks=self._batch.parking.host.counts(),
            preempted=self._batch.parking.counts(),
        )

    def explain(self, request_id: str) -> Explanation | None:
        """Why a request waits and for how long that may last; None when it is not served."""
        request = self._live.get(request_id)
        return None if request is None else explain(self._batch.view(self._step), request)

    def check(self) -> None:
        """Prove all books. Walks pool, queue and requests: for tests, and on demand.

        Raises:
            AssertionError: naming the request or the block.
        """
        in_flight = self._in_flight[1].rows if self._in_flight is not None else []
        self._batch.check(self._live, in_flight)
        self.ledger().check()
        if self._stalled_steps:
            raise AssertionError(
                f"{self._stalled_steps} steps computed nothing although work waited"
            )

    def _end(self, request: Request, reason: FinishReason) -> None:
        """Take a request off the books, wherever it is."""
        if request.state is RequestState.RUNNING:
            self._batch.watermark.observe(0, 1)
        self._batch.remove_waiting(request.request_id)
        self._batch.leave(request)
        del self._live[request.request_id]
        request.state = RequestState.FINISHED
        request.finish_reason = reason
