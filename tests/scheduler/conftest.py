"""A rig for the scheduler: it drives one with witness workers and keeps books of its own.

From the plans alone it holds every step against the laws: fences, progress of the most urgent, no
place lost to somebody less urgent. Every finished output must be the oracle's.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from blockyard.scheduler.block_keys import PrefixExtras
from blockyard.scheduler.config import PreemptionPolicy, SchedulerConfig
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.plan import StepPlan
from blockyard.scheduler.prefix_view import PrefixView
from blockyard.scheduler.request import FinishReason, RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig
from blockyard.workers.fake import WitnessWorker
from blockyard.workers.witness_flight import StepsInFlight
from blockyard.workers.witness_laws import BlockLaws
from blockyard.workers.witness_members import MemberBooks, check_order, member_name

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
    depth: int = 1
    guesser: Any = None
    specs: dict[str, RequestSpec] = field(default_factory=dict)
    reasons: dict[str, FinishReason] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    cached: dict[str, int] = field(default_factory=dict)
    arrivals: int = 0
    computed_tokens: int = 0
    planned_nothing: bool = False
    now: float = 0.0

    def __post_init__(self) -> None:
        limits = self.block_size, self.max_running, self.max_step_tokens, 64, self.policy
        config = SchedulerConfig(self.context, *limits, pipeline_depth=self.depth)
        # A block has one byte: rates are in blocks.
        rates = RateMeter(1, self.prefill_rate, self.link_rate)
        pools = self.num_blocks, self.num_host_blocks
        self.scheduler = Scheduler(config, *pools, rates, self.guesser)
        common = WorkerConfig("", self.context, block_size=self.block_size)
        self.workers = [WitnessWorker(common, self.vocab) for _ in range(self.ranks)]
        for worker in self.workers:
            worker.allocate(self.num_blocks, self.num_host_blocks)
        self.in_flight = StepsInFlight()
        self.unacknowledged: list[int] = []
        self.acknowledged = 0
        self.laws = BlockLaws(self.block_size, self.known, self.kind)
        self.stored = PrefixView()
        self.books = MemberBooks()
        self.outputs = self.books.outputs

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
        self.specs[request_id] = spec
        self._begin(request_id, 0, [])
        for choice in range(1, spec.num_choices):
            self.books.want(request_id, choice, request_id)

    def _begin(self, parent: str, choice: int, before: list[int]) -> str:
        """A member begins: one choice of a request; returns its name."""
        name = self.books.begin(self.specs[parent].request_id, choice, before)
        self.specs[name] = self.specs[parent]
        return name

    def urgency(self, name: Any) -> tuple[int, int, int]:
        spec, choice = self.specs[name], self.books.choices[name]
        return (-spec.priority, spec.sampling.seed, choice)

    def known(self, name: Any) -> tuple[int, ...]:
        name = self.in_flight.parent_or_self(name)
        return (*self.specs[name].prompt_token_ids, *self.outputs[name])

    def kind(self, name: Any) -> PrefixExtras | None:
        spec = self.specs[self.in_flight.parent_or_self(name)]
        return spec.extras if spec.use_prefix_cache else None

    def live(self) -> list[str]:
        return [name for name in self.specs if name not in self.reasons]

    def served(self) -> list[str]:
        """Those who are live or were given up and go on for others."""
        specs, late = self.specs, self.books.late
        return [n for n, s in specs.items() if n not in self.reasons or late(s.request_id, n)]

    def plan(self) -> bool:
        self.now += 1.0
        plan = self.scheduler.plan(self.now)
        fenced = self.scheduler.ledger().blocks.fenced
        if plan is None:
            waits = fenced or self.in_flight or not self.served()
            assert waits, "work waits, nothing is fenced or in flight, nothing is planned"
            self.planned_nothing = True
            return False
        self._hold_against_laws(plan, fenced)
        self.planned_nothing = False
        for fork in plan.forks:
            self.laws.fork(fork.parent, fork.handle, fork.handle)
        results = [worker.execute(plan) for worker in self.workers]
        assert len({result.token_ids for result in results}) == 1
        # What the witness takes says nothing, and would make runs differ.
        result = replace(results[0], compute_seconds=0.0, copy_seconds=0.0)
        self.in_flight.begin(plan, result, self.laws.names)
        self.unacknowledged.append(plan.step)
        self.computed_tokens += len(plan.token_ids)
        return True

    def _hold_against_laws(self, plan: StepPlan, fenced: int) -> None:
        choices = self.books.choices
        members = {(s.sampling.seed, choices[name]): name for name, s in self.specs.items()}
        admitted = [members[a.sampling.seed, a.sampling.choice] for a in plan.admitted]
        for name, admission in zip(admitted, plan.admitted, strict=True):
            assert admission.prompt_tokens == len(self.specs[name].prompt_token_ids)
            if name not in self.started:
                self.started.append(name)
        losers = self.laws.follow(plan, admitted, self.acknowledged)
        names, rows = self.laws.names, [self.laws.names[handle] for handle in plan.handles]
        awaiting = self.in_flight.awaiting(names, self.is_last)
        if not fenced and (free := set(self.served()) - awaiting):
            self.in_flight.check_progress(min(free, key=self.urgency), rows)
        check_order(
            self.urgency,
            rows,
            granted=[names[grant.handle] for grant in plan.grants],
            held_up={*names.values()} - {*rows, *awaiting, *self.in_flight.unborn},
            # Who lost a place while nothing could be planned is told of only now, may be back.
            victims=[n for n in losers if n in self.live() and not self.planned_nothing],
        )
        assert len(plan.token_ids) <= self.max_step_tokens
        assert self.scheduler.ledger().requests.running + len(plan.forks) <= self.max_running

    def commit(self) -> int:
        """Book the oldest step in flight; returns its number."""
        plan, result, born, sampled, right = self.in_flight.end(self.laws.names)
        self.laws.commit(plan, right)
        for handle, parent, choice in born:
            request_id = self.specs[parent].request_id
            name = member_name(request_id, choice)
            if name not in self.specs:  # else it began late, at the step before
                self._begin(parent, choice, self.outputs[parent])
                if parent in self.ended or not self.books.is_awaited(request_id, choice):
                    self.reasons[name] = FinishReason.ABORT
            self.laws.rename(handle, name)
        for parent in sampled:
            for choice in self.books.late(self.specs[parent].request_id, parent):
                self.laws.branch(parent, self._begin(parent, choice, self.outputs[parent]))
        for update in self.scheduler.commit(result, self.now):
            name = member_name(update.request_id, update.choice)
            assert name in self.live(), "news of a request that has ended"
            self.outputs[name].extend(update.token_ids)
            if update.finish_reason is not None:
                self.reasons[name] = update.finish_reason
                self.cached[name] = update.cached_tokens
                self.ended.append(name)
                if update.finish_reason is not FinishReason.ERROR:
                    self.compare(name)
        return plan.step

    def reset_prefix_cache(self) -> None:
        self.scheduler.reset_prefix_cache()
        self.laws.hide()

    def check(self) -> None:
        """The scheduler's own proof, and that its events tell what the prefix index holds."""
        self.scheduler.check()
        events = self.scheduler.take_prefix_events()
        stored = [block.key for block in events.stored]
        assert all(key in self.stored for key in events.removed)
        assert not any(key in self.stored for key in stored)
        self.stored.apply(events.removed, stored)
        held = [block.key for block in self.scheduler.prefix_snapshot()]
        assert len(self.stored) == len(held) and all(key in self.stored for key in held)

    def acknowledge(self, step: int) -> None:
        self.acknowledged = max(self.acknowledged, step)
        self.unacknowledged = [s for s in self.unacknowledged if s > step]
        self.scheduler.acknowledge(step)

    def fail(self, request_id: str) -> None:
        """Let the oldest step in flight answer that this member's logits could not be sampled."""
        (handle,) = (handle for handle, name in self.laws.names.items() if name == request_id)
        self.in_flight.fail(handle)

    def fork(self, name: str, choice: int, token: int | None = None) -> bool:
        """Let a member branch where it samples next, or at once with `token` for its newest."""
        request_id = self.specs[name].request_id
        if not self.scheduler.fork(request_id, self.books.choices[name], choice, token):
            return False
        self.books.want(request_id, choice, name)
        if token is not None:
            self.laws.branch(name, self._begin(name, choice, [*self.outputs[name][:-1], token]))
        return True

    def abort(self, request_id: str) -> None:
        members = [name for name in self.live() if self.specs[name].request_id == request_id]
        assert self.scheduler.abort(request_id) >= bool(members)
        self.reasons.update(dict.fromkeys(members, FinishReason.ABORT))
        self.books.end(request_id)

    def abort_choice(self, request_id: str, choice: int) -> bool:
        """End one choice, begun or not; whom it is to begin goes on."""
        name = member_name(request_id, choice)
        live, awaited = name in self.live(), self.books.is_awaited(request_id, choice)
        ended = self.scheduler.abort(request_id, choice)
        assert ended == live if name in self.specs else ended <= awaited
        if ended:
            self.books.end_choice(request_id, choice)
            self.reasons |= {name: FinishReason.ABORT} if live else {}
        return ended

    def most_tokens(self, name: str) -> int:
        most = min(self.context, self.num_blocks * self.block_size + 1)
        return self.specs[name].sampling.max_tokens or most - len(self.specs[name].prompt_token_ids)

    def is_last(self, name: str) -> bool:
        return len(self.outputs[name]) + 1 == self.most_tokens(name)

    def compare(self, name: str) -> None:
        sampling, prompt = self.specs[name].sampling, self.specs[name].prompt_token_ids
        kind = self.most_tokens(name), self.vocab, self.specs[name].extras.adapter_id
        expected, stopped = self.books.expected(name, prompt, sampling, *kind)
        assert self.outputs[name] == expected, f"{name} differs from the oracle"
        assert self.reasons[name] is (FinishReason.STOP if stopped else FinishReason.LENGTH)

    def step(self) -> bool:
        """Plan as far ahead as may be, then commit and acknowledge the oldest step in flight."""
        while self.scheduler.may_plan and self.plan():
            self.check()
        if not self.in_flight:
            return False
        self.acknowledge(self.commit())
        self.check()
        return True

    def finish(self) -> None:
        """Run until nobody is left, then require clean books."""
        for _ in range(20_000):
            if self.unacknowledged and not self.in_flight:
                self.acknowledge(self.unacknowledged[-1])
            self.check()
            if not self.step() and not self.unacknowledged:
                break
        assert not self.live()
        ledger = self.scheduler.ledger()
        requests, blocks = ledger.requests, ledger.blocks
        assert blocks.free + blocks.cached == blocks.total == self.num_blocks
        assert requests.running == requests.waiting == requests.parked == ledger.stalled_steps == 0
        assert ledger.host_blocks.free == self.num_host_blocks


@pytest.fixture(scope="session")
def make_rig() -> Callable[..., Rig]:
    """The rig's class: tests cannot import it from here."""
    return Rig


@pytest.fixture(scope="session")
def prompt_of() -> Callable[..., list[int]]:
    """Makes a prompt of a given length, the same for the same salt."""
    return lambda length, salt=0: random.Random(f"{length} {salt}").choices(range(VOCAB), k=length)
