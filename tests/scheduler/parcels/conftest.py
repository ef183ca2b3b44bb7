"""Real schedulers over witnesses, and what carries blocks from one to another as doors do."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from blockyard.scheduler.config import PreemptionPolicy, SchedulerConfig
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.move_cost import LinkModel
from blockyard.scheduler.parcels import (
    Expected,
    Parcel,
    consign,
    take_delivery,
)
from blockyard.scheduler.request import RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig
from blockyard.workers.fake import WitnessWorker, witness_generate

VOCAB = 97
KEY = b"a key of its own"
WIRE = LinkModel(0.001, 1e6)


@dataclass
class Group:
    """A real scheduler over a witness."""

    num_blocks: int = 64
    num_host_blocks: int = 32
    prefill: float = 1000.0
    version: str = ""
    policy: PreemptionPolicy = PreemptionPolicy.AUTO
    link: float = 0.0
    depth: int = 1
    tokens: dict[str, list[int]] = field(default_factory=dict)
    computed: int = 0
    now: float = 0.0

    def __post_init__(self) -> None:
        limits = SchedulerConfig(256, 4, 8, 32, 64, self.policy, pipeline_depth=self.depth)
        limits = replace(limits, weight_version=self.version)
        pools = self.num_blocks, self.num_host_blocks
        self.scheduler = Scheduler(limits, *pools, RateMeter(1, self.prefill, self.link))
        self.worker = WitnessWorker(WorkerConfig("", 256, block_size=4), VOCAB)
        self.worker.allocate(*pools)
        self.results: list[Any] = []

    @property
    def host(self) -> Any:
        return self.scheduler.batch.parking.host

    def submit(self, name: str, prompt: int = 30, limit: int = 40, **options: Any) -> RequestSpec:
        start = sum(name.encode())
        tokens = tuple((start + place) % VOCAB for place in range(prompt))
        spec = RequestSpec(name, tokens, SamplingParams(limit), **options)
        self.scheduler.submit(spec, self.now)
        self.tokens[name] = []
        return spec

    def plan(self) -> bool:
        self.now += 1.0
        plan = self.scheduler.plan(self.now)
        if plan is not None:
            self.computed += len(plan.token_ids)
            self.results.append(self.worker.execute(plan))
        self.scheduler.check()
        return plan is not None

    def commit(self) -> None:
        result = replace(self.results.pop(0), compute_seconds=0.0, copy_seconds=0.0)
        for update in self.scheduler.commit(result, self.now):
            self.tokens[update.request_id].extend(update.token_ids)
        self.scheduler.acknowledge(result.step)
        self.scheduler.check()

    def step(self) -> bool:
        while self.scheduler.may_plan and self.plan():
            pass
        if self.results:
            self.commit()
            return True
        return False

    def member(self, name: str) -> Any:
        (member,) = self.scheduler.roster.members(name)
        return member

    def check(self, spec: RequestSpec) -> None:
        limit = spec.sampling.max_tokens or 0
        expected = witness_generate(spec.prompt_token_ids, limit, VOCAB)
        assert self.tokens[spec.request_id] == expected

    def is_clean(self) -> bool:
        self.scheduler.check()
        ledger = self.scheduler.ledger()
        return ledger.blocks.active == 0 and ledger.host_blocks.free == self.num_host_blocks


def leave(giver: Group, taker: Group, name: str) -> Parcel | None:
    """Let a request go on at another group; the parcel of its blocks."""
    parcel = consign(giver.scheduler, name, KEY, WIRE)
    snapshot = giver.scheduler.snapshot(name, giver.now)
    assert snapshot is not None and giver.scheduler.abort(name)
    giver.scheduler.check()
    taker.scheduler.resume(snapshot, taker.now)
    taker.tokens[name] = giver.tokens.pop(name)
    return parcel


def carry(giver: Group, taker: Group, expected: Expected, count: int | None = None) -> int:
    """Bring blocks over, as doors do; the tokens that came."""
    while (host_ids := giver.host.written(KEY)) is None:
        assert giver.step()
    count = len(expected.host_ids) if count is None else count
    for source, target in zip(host_ids[expected.first :], expected.host_ids[:count], strict=False):
        taker.worker._host_blocks[target] = giver.worker._host_blocks[source]
    giver.host.discard(KEY)
    giver.scheduler.check()
    return take_delivery(taker.scheduler, expected, count)


def run(group: Group) -> None:
    while group.step():
        pass


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """All of it: tests cannot import it from here."""
    return SimpleNamespace(Group=Group, leave=leave, carry=carry, run=run, KEY=KEY, WIRE=WIRE)
