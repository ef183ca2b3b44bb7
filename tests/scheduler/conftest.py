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
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import RowError, StepPlan, StepResult
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
    vocab: int = VOCAB
    specs: dict[str, RequestSpec] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    reasons: dict[str, FinishReason] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    cached: dict[str, int] = field(default_factory=dict)
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
        self.workers = [WitnessWorker(worker_config, self.vocab) for _ in range(self.ranks)]
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
        self.contents: dict[int, tuple[PrefixExtras | None, tuple[int, ...]]] = {}
        self.stored: dict[bytes, bytes] = {}

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
            max_tokens, seed=len(self.specs), stop_token_ids=stop, min_tokens=min_tokens
        )
        spec = RequestSpec(request_id, tuple(prompt), sampling, priority, **options)
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
        for replacement in plan.replacements:
            self._check_found(replacement.handle, replacement.index, replacement.block_id)
            self.tables[replacement.handle][replacement.index] = replacement.block_id
        starts = dict(zip(plan.handles, plan.starts, strict=True))
        for grant in plan.grants:
            table = self.tables[grant.handle]
            for block in grant.block_ids:
                holders = [h for h, other in self.tables.items() if block in other]
                if len(table) * self.block_size < starts.get(grant.handle, 0):
                    self._check_found(grant.handle, len(table), block)
                else:
                    self.contents.pop(block, None)
                    assert self.touched.get(block, 0) <= self.acknowledged, "a fence was passed"
                    assert not holders, f"block {block} is given out twice"
                table.append(block)
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

    def _check_found(self, handle: int, index: int, block: int) -> None:
        """A block whose content counts: a committed step has written it, for just such a request.

        What it holds depends on all tokens up to its end, and on what else decides the KV.
        """
        name = self.names[handle]
        spec = self.specs[name]
        assert spec.use_prefix_cache, f"{name} wants no part in the prefix index"
        known = (*spec.prompt_token_ids, *self.outputs[name])
        expected = (spec.extras, known[: (index + 1) * self.block_size])
        assert self.contents.get(block) == expected, f"{name} is given a wrong block {block}"

    def _note_written(self, plan: StepPlan) -> None:
        """A committed step has filled blocks; only then may they be found."""
        for handle, start, count in zip(plan.handles, plan.starts, plan.counts, strict=True):
            spec = self.specs[self.names[handle]]
            known = (*spec.prompt_token_ids, *self.outputs[spec.request_id])
            for index in range(start // self.block_size, (start + count) // self.block_size):
                self.contents[self.tables[handle][index]] = (
                    spec.extras if spec.use_prefix_cache else None,
                    known[: (index + 1) * self.block_size],
                )

    def commit(self) -> None:
        assert self.in_flight is not None
        plan, result = self.in_flight
        self.in_flight = None
        self._note_written(plan)
        for update in self.scheduler.commit(result, self.now):
            name = update.request_id
            assert name in self.live(), "news of a request that has ended"
            self.outputs[name].extend(update.token_ids)
            if update.finish_reason is not None:
                self.reasons[name] = update.finish_reason
                self.cached[name] = update.cached_tokens
                self.ended.append(name)
                if update.finish_reason is not FinishReason.ERROR:
                    self.compare(name)

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
        (handle,) = (handle for handle, name in self.names.items() if name == request_id)
        self.in_flight = plan, replace(result, errors=(*result.errors, RowError(handle, "failed")))

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
            self.vocab,
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
