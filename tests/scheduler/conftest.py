"""A rig for the scheduler: it drives one with witness workers and keeps books of its own.

From the plans alone it holds every step against the laws: no block is given out before all ranks
have finished the last step that touched it, the most urgent request always advances, and nobody
loses its place to somebody less urgent. Every finished output must be the oracle's.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from blockyard.scheduler.block_keys import PrefixExtras
from blockyard.scheduler.config import PreemptionPolicy, SchedulerConfig
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.plan import RowError, StepPlan, StepResult
from blockyard.scheduler.request import FinishReason, RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig
from blockyard.workers.fake import WitnessWorker, witness_generate
from blockyard.workers.witness_laws import BlockLaws

VOCAB = 97


@dataclass
class Rig:
    """A scheduler, its workers, and books kept from what they say to one another."""

    num_blocks: int
    block_size: int = 4
    max_running: int = 8
    max_step_tokens: int = 16
    context: int = 256
    ranks: int = 1
    vocab: int = VOCAB
    num_host_blocks: int = 0
    policy: PreemptionPolicy = PreemptionPolicy.AUTO
    prefill_rate: float = 0.0
    link_rate: float = 0.0
    specs: dict[str, RequestSpec] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    reasons: dict[str, FinishReason] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    cached: dict[str, int] = field(default_factory=dict)
    arrivals: int = 0
    computed_tokens: int = 0
    now: float = 0.0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_context_tokens=self.context,
                block_size=self.block_size,
                max_running=self.max_running,
                max_step_tokens=self.max_step_tokens,
                max_waiting=64,
                preemption=self.policy,
            ),
            self.num_blocks,
            self.num_host_blocks,
            # A block has one byte: rates are in blocks.
            RateMeter(1, self.prefill_rate, self.link_rate),
        )
        worker_config = WorkerConfig(
            model_dir="", max_context_tokens=self.context, block_size=self.block_size
        )
        self.workers = [WitnessWorker(worker_config, self.vocab) for _ in range(self.ranks)]
        for worker in self.workers:
            worker.load()
            worker.allocate(self.num_blocks, self.num_host_blocks)
        self.in_flight: tuple[StepPlan, StepResult] | None = None
        self.planned_nothing = False
        self.unacknowledged: list[int] = []
        self.acknowledged = 0
        self.laws = BlockLaws(self.block_size, self.known, self.kind)
        self.stored: dict[bytes, bytes] = {}
        self.choices: dict[str, int] = {}
        self.inherited: dict[str, int] = {}

    def submit(
        self,
        request_id: str,
        prompt: list[int],
        max_tokens: int | None = None,
        priority: int = 0,
        stop: tuple[int, ...] = (),
        min_tokens: int = 0,
        **options: Any,
    ) -> None:
        # The seed serves as a name that plans repeat at each admission.
        sampling = SamplingParams(
            max_tokens, seed=self.arrivals, stop_token_ids=stop, min_tokens=min_tokens
        )
        self.arrivals += 1
        spec = RequestSpec(request_id, tuple(prompt), sampling, priority, **options)
        self.scheduler.submit(spec, self.now)
        self._begin(request_id, spec, 0, [])

    def _begin(self, name: str, spec: RequestSpec, choice: int, before: list[int]) -> None:
        """A member begins: one choice of a request, named by its id, later ones with a number."""
        self.specs[name] = spec
        self.choices[name] = choice
        self.outputs[name] = list(before)
        self.inherited[name] = len(before)

    def urgency(self, name: Any) -> tuple[int, int, int]:
        spec = self.specs[name]
        return (-spec.priority, spec.sampling.seed, self.choices[name])

    def known(self, name: Any) -> tuple[int, ...]:
        return (*self.specs[name].prompt_token_ids, *self.outputs[name])

    def kind(self, name: Any) -> PrefixExtras | None:
        spec = self.specs[name]
        return spec.extras if spec.use_prefix_cache else None

    def live(self) -> list[str]:
        return [name for name in self.specs if name not in self.reasons]

    def plan(self) -> bool:
        self.now += 1.0
        plan = self.scheduler.plan(self.now)
        fenced = self.scheduler.ledger().blocks.fenced
        if plan is None:
            assert fenced or not self.live(), "work waits, nothing is fenced, nothing is planned"
            self.planned_nothing = True
            return False
        self._hold_against_laws(plan, fenced)
        self.planned_nothing = False
        results = [worker.execute(plan) for worker in self.workers]
        assert len({result.token_ids for result in results}) == 1
        # What the witness takes says nothing, and would make runs differ.
        self.in_flight = (plan, replace(results[0], compute_seconds=0.0, copy_seconds=0.0))
        self.unacknowledged.append(plan.step)
        self.computed_tokens += len(plan.token_ids)
        return True

    def _hold_against_laws(self, plan: StepPlan, fenced: int) -> None:
        members = {(s.sampling.seed, self.choices[name]): name for name, s in self.specs.items()}
        admitted = [members[a.sampling.seed, a.sampling.choice] for a in plan.admitted]
        for name, admission in zip(admitted, plan.admitted, strict=True):
            assert admission.prompt_tokens == len(self.specs[name].prompt_token_ids)
            if name not in self.started:
                self.started.append(name)
        losers = self.laws.follow(plan, admitted, self.acknowledged)
        names = self.laws.names
        rows = [names[handle] for handle in plan.handles]
        if not fenced:
            assert min(self.live(), key=self.urgency) in rows, "the most urgent must advance"
        held_up = [name for name in names.values() if name not in rows]
        for grant in plan.grants:
            urgency = self.urgency(names[grant.handle])
            assert all(urgency < self.urgency(other) for other in held_up)
        # Who lost a place while nothing could be planned is told of only now, and may be back.
        victims = [name for name in losers if name in self.live() and not self.planned_nothing]
        for victim in victims:
            assert all(self.urgency(row) < self.urgency(victim) for row in rows)
        assert len(plan.token_ids) <= self.max_step_tokens
        assert self.scheduler.ledger().requests.running + len(plan.forks) <= self.max_running

    def commit(self) -> None:
        assert self.in_flight is not None
        plan, result = self.in_flight
        self.in_flight = None
        self.laws.commit(plan)
        for fork in plan.forks:
            parent = str(self.laws.names[fork.parent])
            spec, choice = self.specs[parent], fork.sampling.choice
            name = f"{spec.request_id}/{choice}"
            self.laws.fork(fork.parent, fork.handle, name)
            self._begin(name, spec, choice, self.outputs[parent])
            if parent in self.reasons:
                self.reasons[name] = self.reasons[parent]
        for update in self.scheduler.commit(result, self.now):
            choice = update.choice
            name = f"{update.request_id}/{choice}" if choice else update.request_id
            assert name in self.live(), "news of a request that has ended"
            self.outputs[name].extend(update.token_ids)
            if update.finish_reason is not None:
                self.reasons[name] = update.finish_reason
                self.cached[name] = update.cached_tokens
                self.ended.append(name)
                if update.finish_reason is not FinishReason.ERROR:
                    self.compare(name)

    def reset_prefix_cache(self) -> None:
        self.scheduler.reset_prefix_cache()
        self.laws.hide()

    def check(self) -> None:
        """The scheduler's own proof, and that its events tell what the prefix index holds."""
        self.scheduler.check()
        events = self.scheduler.take_prefix_events()
        for key in events.removed:
            del self.stored[key]
        for block in events.stored:
            assert block.key not in self.stored
            self.stored[block.key] = block.parent_key
        held = {block.key: block.parent_key for block in self.scheduler.prefix_snapshot()}
        assert self.stored == held

    def acknowledge(self, step: int) -> None:
        self.acknowledged = max(self.acknowledged, step)
        self.unacknowledged = [s for s in self.unacknowledged if s > step]
        self.scheduler.acknowledge(step)

    def fail(self, request_id: str) -> None:
        """Let the step in flight answer that this request's logits could not be sampled."""
        assert self.in_flight is not None
        plan, result = self.in_flight
        (handle,) = (handle for handle, name in self.laws.names.items() if name == request_id)
        self.in_flight = plan, replace(result, errors=(*result.errors, RowError(handle, "failed")))

    def fork(self, name: str, choice: int) -> bool:
        """Let a member branch where it samples next, into a choice that never was."""
        if f"{self.specs[name].request_id}/{choice}" in self.specs:
            return False
        return self.scheduler.fork(self.specs[name].request_id, self.choices[name], choice)

    def abort(self, request_id: str) -> None:
        members = [name for name in self.live() if self.specs[name].request_id == request_id]
        assert self.scheduler.abort(request_id) == bool(members)
        self.reasons.update(dict.fromkeys(members, FinishReason.ABORT))

    def compare(self, name: str) -> None:
        spec = self.specs[name]
        prompt, inherited = spec.prompt_token_ids, self.outputs[name][: self.inherited[name]]
        slots = self.num_blocks * self.block_size
        fitting = min(self.context - len(prompt), slots - len(prompt) + 1)
        expected = inherited + witness_generate(
            (*prompt, *inherited),
            (spec.sampling.max_tokens or fitting) - len(inherited),
            self.vocab,
            spec.sampling.stop_token_ids,
            spec.sampling.min_tokens - len(inherited),
            self.choices[name],
        )
        assert self.outputs[name] == expected, f"{name} differs from the oracle"
        stopped = (
            expected[-1] in spec.sampling.stop_token_ids
            and len(expected) >= spec.sampling.min_tokens
        )
        assert self.reasons[name] is (FinishReason.STOP if stopped else FinishReason.LENGTH)

    def step(self) -> bool:
        """One whole step with everything acknowledged at once."""
        if not self.plan():
            return False
        self.check()
        self.commit()
        self.acknowledge(self.scheduler.ledger().step)
        self.check()
        return True

    def finish(self) -> None:
        """Run until nobody is left, then require clean books."""
        for _ in range(20_000):
            if self.in_flight is not None:
                self.commit()
            if self.unacknowledged:
                self.acknowledge(self.unacknowledged[-1])
            self.check()
            if not self.step():
                break
        assert not self.live()
        ledger = self.scheduler.ledger()
        assert ledger.blocks.free + ledger.blocks.cached == ledger.blocks.total == self.num_blocks
        assert ledger.requests.running == ledger.requests.waiting == ledger.requests.parked == 0
        assert ledger.stalled_steps == 0
        assert ledger.host_blocks.free == self.num_host_blocks


@pytest.fixture(scope="session")
def make_rig() -> Callable[..., Rig]:
    """The rig's class: tests cannot import it from here."""
    return Rig


@pytest.fixture(scope="session")
def prompt_of() -> Callable[..., list[int]]:
    """Makes a prompt of a given length, the same for the same salt."""

    def make(length: int, salt: int = 0) -> list[int]:
        return random.Random(f"{length} {salt}").choices(range(VOCAB), k=length)

    return make
