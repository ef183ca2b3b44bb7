"""A rig for the scheduler: it drives one with witness workers and keeps books of its own.

From the plans alone it holds every step against the laws: no block is given out before all ranks
have finished the last step that touched it, the most urgent request always advances, and nobody
loses its place to somebody less urgent. Every finished output must be the oracle's.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import FinishReason, RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig
from blockyard.workers.fake import WitnessWorker, witness_generate

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
    specs: dict[str, RequestSpec] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    reasons: dict[str, FinishReason] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
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
            ),
            self.num_blocks,
        )
        worker_config = WorkerConfig(
            model_dir="", max_context_tokens=self.context, block_size=self.block_size
        )
        self.workers = [WitnessWorker(worker_config, VOCAB) for _ in range(self.ranks)]
        for worker in self.workers:
            worker.load()
            worker.allocate(self.num_blocks)
        self.in_flight: tuple[StepPlan, StepResult] | None = None
        self.planned_nothing = False
        self.unacknowledged: list[int] = []
        self.acknowledged = 0
        self.tables: dict[int, list[int]] = {}
        self.names: dict[int, str] = {}
        self.touched: dict[int, int] = {}

    def submit(
        self,
        request_id: str,
        prompt: list[int],
        max_tokens: int | None = None,
        priority: int = 0,
        stop: tuple[int, ...] = (),
        min_tokens: int = 0,
    ) -> None:
        # The seed serves as a name that plans repeat at each admission.
        sampling = SamplingParams(
            max_tokens, seed=len(self.specs), stop_token_ids=stop, min_tokens=min_tokens
        )
        spec = RequestSpec(request_id, tuple(prompt), sampling, priority)
        self.scheduler.submit(spec, self.now)
        self.specs[request_id] = spec
        self.outputs[request_id] = []

    def urgency(self, request_id: str) -> tuple[int, int]:
        spec = self.specs[request_id]
        return (-spec.priority, spec.sampling.seed)

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
        self.in_flight = (plan, results[0])
        self.unacknowledged.append(plan.step)
        self.computed_tokens += len(plan.token_ids)
        return True

    def _hold_against_laws(self, plan: StepPlan, fenced: int) -> None:
        by_seed = {spec.sampling.seed: name for name, spec in self.specs.items()}
        losers = []
        for handle in plan.forgotten:
            del self.tables[handle]
            losers.append(self.names.pop(handle))
        for admission in plan.admitted:
            name = by_seed[admission.sampling.seed]
            assert admission.prompt_tokens == len(self.specs[name].prompt_token_ids)
            if name not in self.started:
                self.started.append(name)
            self.names[admission.handle] = name
            self.tables[admission.handle] = []
        for grant in plan.grants:
            for block in grant.block_ids:
                assert self.touched.get(block, 0) <= self.acknowledged, "a fence was passed"
                holders = [h for h, table in self.tables.items() if block in table]
                assert not holders, f"block {block} is given out twice"
            self.tables[grant.handle].extend(grant.block_ids)
        rows = [self.names[handle] for handle in plan.handles]
        for handle in plan.handles:
            self.touched.update(dict.fromkeys(self.tables[handle], plan.step))
        if not fenced:
            assert min(self.live(), key=self.urgency) in rows, "the most urgent must advance"
        held_up = [name for name in self.names.values() if name not in rows]
        for grant in plan.grants:
            name = self.names[grant.handle]
            assert all(self.urgency(name) < self.urgency(other) for other in held_up)
        # Who lost a place while nothing could be planned is told of only now, and may be back.
        victims = [name for name in losers if name in self.live() and not self.planned_nothing]
        for victim in victims:
            assert all(self.urgency(row) < self.urgency(victim) for row in rows)
        assert len(plan.token_ids) <= self.max_step_tokens
        assert len(rows) <= self.max_running

    def commit(self) -> None:
        assert self.in_flight is not None
        _, result = self.in_flight
        self.in_flight = None
        for update in self.scheduler.commit(result, self.now):
            name = update.request_id
            assert name in self.live(), "news of a request that has ended"
            self.outputs[name].extend(update.token_ids)
            if update.finish_reason is not None:
                self.reasons[name] = update.finish_reason
                self.ended.append(name)
                self.compare(name)

    def acknowledge(self, step: int) -> None:
        self.acknowledged = max(self.acknowledged, step)
        self.unacknowledged = [s for s in self.unacknowledged if s > step]
        self.scheduler.acknowledge(step)

    def abort(self, request_id: str) -> None:
        was_live = request_id in self.live()
        assert self.scheduler.abort(request_id) == was_live
        if was_live:
            self.reasons[request_id] = FinishReason.ABORT

    def compare(self, name: str) -> None:
        spec = self.specs[name]
        prompt = spec.prompt_token_ids
        slots = self.num_blocks * self.block_size
        fitting = min(self.context - len(prompt), slots - len(prompt) + 1)
        expected = witness_generate(
            prompt,
            spec.sampling.max_tokens or fitting,
            VOCAB,
            spec.sampling.stop_token_ids,
            spec.sampling.min_tokens,
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
        self.scheduler.check()
        self.commit()
        self.acknowledge(self.scheduler.ledger().step)
        self.scheduler.check()
        return True

    def finish(self) -> None:
        """Run until nobody is left, then require clean books."""
        for _ in range(20_000):
            if self.in_flight is not None:
                self.commit()
            if self.unacknowledged:
                self.acknowledge(self.unacknowledged[-1])
            self.scheduler.check()
            if not self.step():
                break
        assert not self.live()
        ledger = self.scheduler.ledger()
        assert ledger.blocks.free == ledger.blocks.total == self.num_blocks
        assert ledger.requests.running == ledger.requests.waiting == ledger.requests.parked == 0
        assert ledger.stalled_steps == 0


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
