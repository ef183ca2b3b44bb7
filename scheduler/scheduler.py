"""One group's scheduler: `plan` decides a step, workers compute it, `commit` books it.

A request's computed tokens chase its known tokens; prefill, decode and recompute after a
preemption are the same walk. Up to `config.pipeline_depth` steps are in flight: one is planned
before the one that runs is committed, with placeholders for the tokens that this one samples. Pure:
no device, no clock (`now` is passed in, in seconds), no thread safety: one owner calls it. Units:
tokens, blocks, steps.
"""

from collections import deque
from collections.abc import Callable, Sequence

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.bookkeeping import ledger_of
from blockyard.scheduler.commit import commit_step
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.deadline import DeadlineWatch, least_tokens
from blockyard.scheduler.door import (
    pack_prompt,
    refuse_hopeless,
    refuse_now,
    refuse_snapshot,
    resolve_max_tokens,
)
from blockyard.scheduler.draft import PlanDraft
from blockyard.scheduler.endings import last_update, with_weights
from blockyard.scheduler.explain import Explanation, explain
from blockyard.scheduler.guessed_rows import GuessedRows
from blockyard.scheduler.guessing import Guesser, guesser_for
from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.packing import StepPacker
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.prefix_index import PrefixEvents, StoredBlock
from blockyard.scheduler.request import FinishReason, RequestSpec, RequestUpdate
from blockyard.scheduler.roster import Roster
from blockyard.scheduler.searches import check_searches, give_way, settle_searches
from blockyard.scheduler.simulated.run_ahead import run_ahead, steady_steps
from blockyard.scheduler.snapshot import RequestSnapshot

__all__ = ["Scheduler", "StepOrderError"]


class StepOrderError(RuntimeError):
    """`plan`, `commit` or `acknowledge` was called out of order, or with another's result."""


class Scheduler:
    """Continuous batching with chunked prefill over one pool of blocks.

    Attributes:
        batch, roster: places and members, for modules that deal with whole requests.

    Args:
        config: limits and policies.
        num_blocks: blocks of the pool.
        num_host_blocks: blocks of the pool in host memory, where swapped blocks go; may be 0.
        rates: what steps and copies take, as measured at load; it goes on learning here.
        guesser: who guesses next tokens, in place of the one that `config` names.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        num_blocks: int,
        num_host_blocks: int = 0,
        rates: RateMeter | None = None,
        guesser: Guesser | None = None,
    ) -> None:
        self.config = config
        self._num_blocks = num_blocks
        self.batch = Batch(config, num_blocks, num_host_blocks, rates)
        self.roster = Roster(self.batch)
        self._guesses: GuessedRows | None = None
        guesser = guesser if guesser is not None else guesser_for(config.speculate)
        if guesser is not None:
            self.batch.one_by_one = True
            self._guesses = GuessedRows(guesser, self.batch.holdings, config.max_step_tokens)
        self._deadlines = DeadlineWatch()
        self._in_flight: deque[tuple[StepPlan, PlanDraft]] = deque()
        self._draining = False
        self._step = 0
        self._stalled_steps = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is running, waiting or parked."""
        return len(self.roster) > 0

    @property
    def may_plan(self) -> bool:
        """Whether another step may be planned before one in flight is committed."""
        return len(self._in_flight) < self.config.pipeline_depth

    @property
    def num_requests(self) -> int:
        """Requests running, waiting or parked."""
        return len(self.roster)

    def serves(self, request_id: str) -> bool:
        """Whether any choice of a request has not ended."""
        return request_id in self.roster

    def submit(self, spec: RequestSpec, now: float) -> int:
        """Take a request in.

        Returns:
            Most tokens of an answer: what was asked for, else what fits.

        Raises:
            RequestRefused: INVALID naming the field, UNAVAILABLE when draining, EXHAUSTED when too
                many wait, or so much that it cannot meet its deadline.
        """
        max_tokens = resolve_max_tokens(spec, self.config, self._num_blocks)
        packed = pack_prompt(spec, self.config)
        batch = self.batch
        refuse_now(spec.request_id, self.roster, self._draining, batch.num_waiting, self.config)
        request = self.roster.make(spec, max_tokens, now, packed=packed)
        if spec.deadline_seconds is not None:
            rates = batch.parking.rates.model()
            batch.cache.match(request)
            refuse_hopeless(request, batch.queue.tokens_ahead(spec.priority), rates)
            self._deadlines.add(request, rates)
        self.roster.add(request)
        return max_tokens

    def snapshot(self, request_id: str, now: float) -> RequestSnapshot | None:
        """The value of a request, to go on with elsewhere; None when it is not served."""
        return self.roster.snapshot(request_id, now)

    def resume(self, snapshot: RequestSnapshot, now: float) -> None:
        """Take in a request that another scheduler served, and go on from where it stood.

        It was admitted once: it is not refused because many wait, nor for its deadline. That ends
        it only while nothing was produced.

        Raises:
            RequestRefused: INVALID when it could never be finished here, or its id is in use;
                UNAVAILABLE when draining.
        """
        refuse_snapshot(snapshot, self.config, self._num_blocks)
        refuse_now(snapshot.spec.request_id, self.roster, self._draining, 0, self.config)
        members = self.roster.resume(snapshot, now)
        for member in () if snapshot.has_started else members:
            self._deadlines.add(member, self.batch.parking.rates.model())

    def abort(self, request_id: str, choice: int | None = None) -> bool:
        """End a request, or one choice, in whatever state; False when it is not served (any more).

        Its blocks are released at once, behind a fence if a step in flight touches them; what that
        step computes for it is ignored. Other choices go on, as a search does for those wanted.
        """
        return self.roster.abort(request_id, choice)

    def fork(self, request_id: str, choice: int, new_choice: int, token: int | None = None) -> bool:
        """Let a choice that runs branch: for searches, since all blocks are shared.

        Without `token` both go on from the same tokens where the choice samples next. With it the
        new choice begins at once, with `token` in place of the newest one that was told: who looks
        for the best answers forks all tokens that it wants to follow and aborts the choice.

        Returns:
            False when there is no such choice, it does not run, the new number was used before in
            this request, no place is left, or the new choice would end with `token`.
        """
        if token is None:
            return self.roster.want_fork(request_id, choice, new_choice)
        return self.roster.branch(request_id, choice, new_choice, token)

    def expire(self, now: float) -> list[RequestUpdate]:
        """End requests that have not started and can no longer meet their deadline.

        Call it before `plan`: so they take no place from those that can.
        """
        missed = self._deadlines.missed(now, self.batch.parking.rates.model(), least_tokens)
        updates = []
        for request, verdict in missed:
            self.roster.end(request, FinishReason.DEADLINE)
            updates.append(last_update(request, now, (), verdict.message))
        return updates

    def start_drain(self) -> None:
        """Take no new request; those taken are still finished."""
        self._draining = True

    def plan(self, now: float) -> StepPlan | None:
        """Decide the next step; None when nothing can be computed before something else happens:
        a new request, the commit of a step in flight, the acknowledgement that a fence waits for.

        Raises:
            StepOrderError: as many steps are in flight as may be.
        """
        if not self.may_plan:
            oldest = self._in_flight[0][0].step
            raise StepOrderError(f"step {oldest} is in flight; commit its result first")
        draft, host = self._pack(now), self.batch.parking.host
        while not draft.num_rows and not host.owes_parcels:
            waits = self._in_flight or self.batch.pool.num_fenced
            if waits or not give_way(self.batch):
                self._stalled_steps += self.has_work and not (waits or host.num_awaited)
                return None
            draft = self._pack(now)
        if self._guesses is not None:
            self._guesses.add(draft)
        self._step = draft.step
        plan = draft.seal(*self.batch.notices.take(), *host.take_moves(draft.step))
        self.batch.num_recomputed += draft.num_recomputed
        self._in_flight.append((plan, draft))
        return plan

    def commit(self, result: StepResult, now: float) -> list[RequestUpdate]:
        """Book what the oldest step in flight computed, and tell what is new: rows, then forks.

        A row whose request has ended since the step was planned has computed in vain.

        Raises:
            StepOrderError: the result is not that of the oldest step in flight.
        """
        if not self._in_flight or self._in_flight[0][0].step != result.step:
            raise StepOrderError(f"a result of step {result.step} came; that step is not due")
        plan, draft = self._in_flight[0]
        if (given := len(result.token_ids)) != (wanted := plan.num_samples):
            raise StepOrderError(
                f"step {plan.step} samples {wanted} tokens, its result has {given}"
            )
        self._in_flight.popleft()
        guesses = self._guesses if plan.guesses else None
        if guesses is not None:
            plan, result = guesses.settle(plan, draft, result)
        weights = self.config.told_weights
        updates = commit_step(self.batch, self.roster, plan, draft, result, now, weights)
        updates = updates if guesses is None else guesses.tell(updates)
        updates = settle_searches(self.roster, updates, now) if self.roster.searches else updates
        return with_weights(updates, weights) if weights else updates

    def acknowledge(self, step: int) -> None:
        """Every rank has finished `step`: blocks fenced until then become free.

        Raises:
            StepOrderError: no such step was planned yet.
        """
        if step > self._step:
            raise StepOrderError(f"step {step} is acknowledged, the newest planned is {self._step}")
        self.batch.acknowledge(step)

    def steady_steps(self, most: int) -> list[int]:
        """Blocks that the plans of the first `k` of the coming steps take, as entry `k`.

        As far as `run_ahead` may go, at most `most`; [0] unless all who are here decode.
        """
        return [0] if self._in_flight else steady_steps(self.batch, most)

    def run_ahead(self, seconds: Sequence[float], answer: Callable[[str], int]) -> None:
        """For simulations: do a steady step for each length in `seconds`; nobody is told.

        `answer` tells the token of a request id.
        """
        self._step += len(seconds)
        run_ahead(self.batch, self._step, seconds, answer)

    def reset_prefix_cache(self) -> None:
        """Forget all blocks that could be found; what runs goes on and leaves nothing behind."""
        self.batch.reset_prefix_cache()

    def take_prefix_events(self) -> PrefixEvents:
        """What came into the prefix index and what left it since the last call."""
        return self.batch.cache.index.take_events()

    def prefix_snapshot(self) -> tuple[StoredBlock, ...]:
        """All that the prefix index holds, for who has not followed the events."""
        return self.batch.cache.index.snapshot()

    def ledger(self) -> GroupLedger:
        """The books at this moment, from counters: costs the same however many requests run."""
        return ledger_of(self.batch, self._step, self._stalled_steps, self._guesses)

    def explain(self, request_id: str) -> tuple[Explanation, ...]:
        """Why each choice of a request waits and for how long; empty when it is not served."""
        members = self.roster.members(request_id)
        view = self.batch.view(self._step) if members else None
        return tuple(explain(view, member) for member in members) if view is not None else ()

    def check(self) -> None:
        """Prove all books. Walks pool, queue and requests: for tests, and on demand.

        Raises:
            AssertionError: naming the request or the block.
        """
        in_flight = [row for _, draft in self._in_flight for row in draft.counts()]
        self.batch.check(tuple(self.roster), in_flight)
        self.ledger().check()
        check_searches(self.roster)
        if self._stalled_steps:
            raise AssertionError(f"{self._stalled_steps} steps were empty although work waited")

    def _pack(self, now: float) -> PlanDraft:
        draft = PlanDraft(self._step + 1)
        StepPacker(self.batch, draft, now).pack()
        return draft
