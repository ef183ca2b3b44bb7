"""The scheduler driven with witness workers: every output must be the oracle's, block by block.

The rig keeps books of its own from the plans alone, and holds every plan against the laws: no
block is given out before all ranks have finished the last step that touched it, the most urgent
request always advances, and nobody loses its place to somebody less urgent.
"""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import FinishReason, RequestRefused, RequestSpec
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
            return False
        self._hold_against_laws(plan, fenced)
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
        victims = [name for name in losers if name in self.live()]
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


def prompt_of(length: int, salt: int = 0) -> list[int]:
    return random.Random(f"{length} {salt}").choices(range(VOCAB), k=length)


def test_o01_prompt_lengths_around_a_block() -> None:
    rig = Rig(num_blocks=64, block_size=16)
    for length in (1, 15, 16, 17, 31, 32, 33):
        for copy in ("first", "second"):
            rig.submit(f"{length} {copy}", prompt_of(length), max_tokens=4)
        rig.finish()
    for length in (16, 32):
        rig.submit(f"{length} third", prompt_of(length), max_tokens=4)
        rig.submit(f"{length} fourth", prompt_of(length), max_tokens=4)
    rig.finish()
    assert len(rig.ended) == 18


def test_o08_nobody_preempts_everybody() -> None:
    rig = Rig(num_blocks=20, max_running=16, max_step_tokens=64)
    for index in range(10):
        rig.submit(str(index), prompt_of(24, index), max_tokens=48)
    rig.finish()
    assert rig.ended == sorted(rig.ended), "equals end in the order in which they came"
    assert rig.scheduler.ledger().preemptions > 0
    useful = 10 * (24 + 48 - 1)
    assert rig.computed_tokens < 2 * useful


def test_o09_small_requests_pass_a_big_one_but_not_for_ever() -> None:
    rig = Rig(num_blocks=32, max_running=16, max_step_tokens=64)
    rig.submit("A", prompt_of(76), max_tokens=5)
    rig.step()
    rig.submit("B", prompt_of(76, 1), max_tokens=5)
    for index in range(10):
        rig.submit(f"C{index}", prompt_of(5, index), max_tokens=4)
    rig.step()
    rig.step()
    assert "C0" in rig.started and "B" not in rig.started
    for index in range(10, 200):
        rig.submit(f"C{index}", prompt_of(5, index), max_tokens=4)
        rig.step()
    assert rig.started.index("B") <= 18
    rig.finish()


def test_a_big_request_is_passed_a_bounded_number_of_times() -> None:
    rig = Rig(num_blocks=32, max_running=16, max_step_tokens=64)
    rig.submit("A", prompt_of(60), max_tokens=60)
    rig.step()
    rig.submit("B", prompt_of(76, 1), max_tokens=5)
    for index in range(50):
        rig.submit(f"C{index}", prompt_of(5, index), max_tokens=2)
    while "A" in rig.live():
        rig.step()
    assert rig.started[:2] == ["A", "C0"]
    assert sum(name.startswith("C") for name in rig.started) == 16
    rig.finish()


def test_o10_high_priority_takes_the_slots_of_low() -> None:
    rig = Rig(num_blocks=200, max_running=2)
    for name in ("low 0", "low 1"):
        rig.submit(name, prompt_of(10), max_tokens=200)
    for _ in range(5):
        rig.step()
    for choice in range(3):
        rig.submit(f"high {choice}", prompt_of(9), max_tokens=5, priority=1)
    rig.finish()
    assert rig.ended == ["high 0", "high 1", "high 2", "low 0", "low 1"]
    assert rig.scheduler.ledger().preemptions == 2


def test_o10_equals_never_take_slots_from_one_another() -> None:
    rig = Rig(num_blocks=200, max_running=2)
    for name in ("old 0", "old 1", "new 0", "new 1", "new 2"):
        rig.submit(name, prompt_of(10), max_tokens=50)
        rig.step()
    rig.finish()
    assert rig.scheduler.ledger().preemptions == 0


def test_high_priority_takes_the_blocks_of_low() -> None:
    rig = Rig(num_blocks=16, max_running=8)
    for index in range(3):
        rig.submit(f"low {index}", prompt_of(16, index), max_tokens=30)
    for _ in range(6):
        rig.step()
    rig.submit("high", prompt_of(40), max_tokens=20, priority=5)
    rig.finish()
    assert rig.ended[0] == "high"
    assert rig.scheduler.ledger().preemptions > 0


@pytest.mark.parametrize("seed", range(3))
def test_o12_o13_waves_with_random_cancels(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(num_blocks=32, max_running=12, max_step_tokens=48, ranks=2)
    for wave in range(4):
        for index in range(12):
            prompt = rng.choices(range(VOCAB), k=rng.randint(20, 50))
            rig.submit(f"{wave} {index}", prompt, rng.randint(1, 40), rng.choice((0, 0, 1)))
        for _ in range(rng.randint(5, 60)):
            if rig.in_flight is not None and rng.random() < 0.8:
                rig.commit()
            if rig.unacknowledged and rng.random() < 0.5:
                rig.acknowledge(rng.choice(rig.unacknowledged))
            if rig.in_flight is None:
                rig.plan()
            if rig.live() and rng.random() < 0.1:
                rig.abort(rng.choice(rig.live()))
            rig.scheduler.check()
    rig.finish()
    rig.submit("last", prompt_of(5), max_tokens=3)
    assert rig.step(), "a small request is served at once"
    rig.finish()


class SchedulerMachine(RuleBasedStateMachine):
    """Anything may happen in any order; books and outputs are right all the time."""

    rig: Rig
    draining = False

    @initialize(
        num_blocks=st.integers(2, 14),
        block_size=st.sampled_from((1, 2, 4)),
        max_running=st.integers(1, 6),
        spare_tokens=st.integers(1, 12),
    )
    def start(self, num_blocks: int, block_size: int, max_running: int, spare_tokens: int) -> None:
        self.rig = Rig(
            num_blocks,
            block_size,
            max_running,
            max_step_tokens=max_running + spare_tokens,
            context=40,
            ranks=2,
        )

    @rule(
        length=st.integers(1, 24),
        max_tokens=st.none() | st.integers(1, 16),
        priority=st.integers(0, 2),
        stops=st.booleans(),
        min_tokens=st.integers(0, 3),
    )
    def submit(
        self, length: int, max_tokens: int | None, priority: int, stops: bool, min_tokens: int
    ) -> None:
        stop = tuple(range(0, VOCAB, 7)) if stops else ()
        name = f"request {len(self.rig.specs)}"
        least = min(min_tokens, max_tokens or min_tokens)
        prompt = prompt_of(length, len(self.rig.specs))
        slots = self.rig.num_blocks * self.rig.block_size
        total = length + (max_tokens or 1)
        if max_tokens is None:
            least = 0
        fits = length < 40 and total <= 40 and total - 1 <= slots
        try:
            self.rig.submit(name, prompt, max_tokens, priority, stop, least)
        except RequestRefused:
            assert self.draining or not fits
        else:
            assert fits and not self.draining

    @precondition(lambda self: self.rig.in_flight is None)
    @rule()
    def plan(self) -> None:
        self.rig.plan()

    @precondition(lambda self: self.rig.in_flight is not None)
    @rule()
    def commit(self) -> None:
        self.rig.commit()

    @precondition(lambda self: self.rig.unacknowledged)
    @rule(data=st.data())
    def acknowledge_late(self, data: st.DataObject) -> None:
        self.rig.acknowledge(data.draw(st.sampled_from(self.rig.unacknowledged)))

    @rule(steps=st.integers(1, 12))
    def step_on(self, steps: int) -> None:
        if self.rig.in_flight is not None:
            self.rig.commit()
        for _ in range(steps):
            if not self.rig.step():
                break

    @precondition(lambda self: self.rig.specs)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.rig.abort(data.draw(st.sampled_from(sorted(self.rig.specs))))

    @rule()
    def drain(self) -> None:
        # Rarely useful early in a run: afterwards nothing new comes in.
        if len(self.rig.specs) > 6:
            self.draining = True
            self.rig.scheduler.start_drain()

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "rig"):
            self.rig.scheduler.check()

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.finish()


SchedulerMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestSchedulerMachine = SchedulerMachine.TestCase
