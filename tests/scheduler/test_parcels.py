"""Two real schedulers over witnesses: blocks that go with a request change none of its tokens."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from blockyard.scheduler.block_keys import PrefixExtras
from blockyard.scheduler.config import PreemptionPolicy, SchedulerConfig
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.explain import WaitReason
from blockyard.scheduler.move_cost import LinkModel
from blockyard.scheduler.parcels import (
    Expected,
    Parcel,
    consign,
    expect,
    go_on_without,
    take_delivery,
)
from blockyard.scheduler.relief import choose_yielding
from blockyard.scheduler.request import RequestSpec, RequestState
from blockyard.scheduler.restart import restarted
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scarcity import set_host_blocks_aside
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
        return self.scheduler._batch.parking.host

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
        (member,) = self.scheduler._roster.members(name)
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


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_that_runs_goes_on_where_it_stood(depth: int) -> None:
    giver, taker = Group(depth=depth), Group(depth=depth)
    spec = giver.submit("mover")
    for _ in range(12):
        giver.step()
    parcel = leave(giver, taker, "mover")
    assert parcel is not None and parcel.num_tokens == 30 + len(taker.tokens["mover"]) - 1
    expected = expect(taker.scheduler, "mover", parcel, WIRE)
    assert expected is not None
    taker.scheduler.check()
    assert not taker.plan(), "it waits for its blocks"
    assert taker.scheduler.explain("mover")[0].reason is WaitReason.TRANSIT
    assert giver.scheduler.ledger().host_blocks.active == parcel.num_blocks
    assert taker.scheduler.ledger().host_blocks.active == parcel.num_blocks
    assert carry(giver, taker, expected) == parcel.num_tokens
    assert taker.member("mover").state is RequestState.PARKED
    run(taker)
    taker.check(spec)
    produced = 40 - (parcel.num_tokens - 30)
    assert taker.computed == produced - 1, "nothing is computed again"
    assert taker.scheduler.ledger().recomputed_tokens == 0
    run(giver)
    assert giver.is_clean() and taker.is_clean()


def test_what_is_missing_at_the_end_is_computed_again() -> None:
    giver, taker = Group(), Group()
    spec = giver.submit("mover")
    for _ in range(12):
        giver.step()
    parcel = leave(giver, taker, "mover")
    assert parcel is not None
    expected = expect(taker.scheduler, "mover", parcel, WIRE)
    assert expected is not None
    assert carry(giver, taker, expected, 3) == 12
    run(taker)
    taker.check(spec)
    assert taker.scheduler.ledger().recomputed_tokens == parcel.num_tokens - 12
    assert taker.is_clean()


def test_blocks_that_the_taker_has_need_not_come() -> None:
    giver, taker = Group(), Group()
    spec = giver.submit("mover")
    for _ in range(12):
        giver.step()
    alike = replace(spec, request_id="alike", sampling=SamplingParams(2))
    taker.scheduler.submit(alike, 0.0)
    taker.tokens["alike"] = []
    run(taker)
    before = taker.computed
    parcel = leave(giver, taker, "mover")
    assert parcel is not None
    expected = expect(taker.scheduler, "mover", parcel, WIRE)
    assert expected is not None and expected.first == 30 // 4
    assert carry(giver, taker, expected) == parcel.num_tokens - expected.first * 4
    run(taker)
    taker.check(spec)
    assert taker.computed - before == 40 - (parcel.num_tokens - 30) - 1
    assert taker.scheduler.ledger().prefix_hit_tokens == expected.first * 4
    assert taker.is_clean()


def test_a_parked_one_goes_with_what_was_swapped_out_and_what_it_still_holds() -> None:
    giver, taker = Group(22, 32, link=1e6, policy=PreemptionPolicy.SWAP), Group()
    old, young = giver.submit("old", 20, 60), giver.submit("young", 20, 40)
    while giver.scheduler.ledger().preempted.swapped == 0:
        giver.step()
    assert choose_yielding(giver.scheduler, 8, 1000) == ("young",)
    assert giver.member("young").host_ids
    parcel = leave(giver, taker, "young")
    assert parcel is not None and parcel.num_tokens == 20 + len(taker.tokens["young"]) - 1
    expected = expect(taker.scheduler, "young", parcel, WIRE)
    assert expected is not None
    carry(giver, taker, expected)
    run(taker)
    run(giver)
    giver.check(old)
    taker.check(young)
    assert taker.scheduler.ledger().recomputed_tokens == 0
    assert giver.is_clean() and taker.is_clean()


def test_cost_decides_at_either_end() -> None:
    giver, quick = Group(), Group(prefill=1e9)
    giver.submit("mover")
    for _ in range(12):
        giver.step()
    dear = LinkModel(0.001, 1.0)
    assert consign(giver.scheduler, "mover", KEY, dear) is None
    assert giver.scheduler.ledger().host_blocks.active == 0
    parcel = leave(giver, quick, "mover")
    assert parcel is not None
    assert expect(quick.scheduler, "mover", parcel, WIRE) is None
    run(quick)
    giver.host.discard(KEY)
    assert giver.is_clean() and quick.is_clean()


Change = Callable[[Parcel], Parcel]


@pytest.mark.parametrize(
    ("taker", "change"),
    [
        pytest.param({"version": "other"}, lambda parcel: parcel, id="weights"),
        pytest.param({}, lambda parcel: replace(parcel, block_size=8), id="block size"),
        pytest.param({}, lambda parcel: replace(parcel, digest=b"other"), id="content"),
        pytest.param({}, lambda parcel: replace(parcel, num_tokens=4), id="other tokens"),
        pytest.param({}, lambda parcel: replace(parcel, num_tokens=10_000), id="too many"),
        pytest.param({"num_host_blocks": 4}, lambda parcel: parcel, id="no room"),
        pytest.param({"num_host_blocks": 0}, lambda parcel: parcel, id="no host pool"),
    ],
)
def test_what_does_not_fit_is_computed_again(taker: dict[str, Any], change: Change) -> None:
    giver, other = Group(), Group(**taker)
    spec = giver.submit("mover")
    for _ in range(12):
        giver.step()
    parcel = leave(giver, other, "mover")
    assert parcel is not None
    assert expect(other.scheduler, "mover", change(parcel), WIRE) is None
    run(other)
    other.check(spec)
    assert other.is_clean()


def test_adapters_are_told_apart() -> None:
    giver, taker = Group(), Group()
    spec = giver.submit("mover")
    for _ in range(12):
        giver.step()
    parcel = consign(giver.scheduler, "mover", KEY, WIRE)
    snapshot = giver.scheduler.snapshot("mover", 0.0)
    assert parcel is not None and snapshot is not None
    adapted = replace(spec, extras=PrefixExtras("poet", "2"))
    taker.scheduler.resume(replace(snapshot, spec=adapted), 0.0)
    assert expect(taker.scheduler, "mover", parcel, WIRE) is None


def test_a_full_host_pool_at_the_giver_sends_nothing() -> None:
    giver = Group()
    giver.submit("mover")
    for _ in range(12):
        giver.step()
    set_host_blocks_aside(giver.scheduler, True)
    assert consign(giver.scheduler, "mover", KEY, WIRE) is None
    set_host_blocks_aside(giver.scheduler, False)
    run(giver)
    assert giver.is_clean()


def test_who_has_nothing_or_more_than_one_choice_sends_nothing() -> None:
    giver = Group()
    giver.submit("fresh")
    giver.submit("forked", num_choices=2)
    assert consign(giver.scheduler, "fresh", KEY, WIRE) is None
    assert consign(giver.scheduler, "unknown", KEY, WIRE) is None
    for _ in range(6):
        giver.step()
    assert consign(giver.scheduler, "forked", KEY, WIRE) is None
    assert consign(giver.scheduler, "fresh", KEY, WIRE) is not None


def test_scored_prompts_are_not_left_unscored() -> None:
    giver, taker = Group(), Group()
    spec = giver.submit("mover")
    for _ in range(12):
        giver.step()
    parcel = consign(giver.scheduler, "mover", KEY, WIRE)
    snapshot = giver.scheduler.snapshot("mover", 0.0)
    assert parcel is not None and snapshot is not None
    scored = replace(spec, sampling=replace(spec.sampling, prompt_logprobs=1))
    choice = replace(snapshot.choices[0], num_scored=20)
    taker.scheduler.resume(replace(snapshot, spec=scored, choices=(choice,)), 0.0)
    assert expect(taker.scheduler, "mover", parcel, WIRE) is None
    taker.scheduler.abort("mover")
    choice = replace(choice, num_scored=29)
    taker.scheduler.resume(replace(snapshot, spec=scored, choices=(choice,)), 0.0)
    assert expect(taker.scheduler, "mover", parcel, WIRE) is not None


def test_one_that_ends_while_its_blocks_come_holds_them_until_nobody_writes() -> None:
    giver, taker = Group(), Group()
    giver.submit("mover")
    for _ in range(12):
        giver.step()
    parcel = leave(giver, taker, "mover")
    assert parcel is not None
    expected = expect(taker.scheduler, "mover", parcel, WIRE)
    assert expected is not None and taker.scheduler.abort("mover")
    taker.scheduler.check()
    assert taker.scheduler.ledger().host_blocks.active == parcel.num_blocks
    assert take_delivery(taker.scheduler, expected, 5) == 0
    assert taker.is_clean()


def test_others_run_while_one_waits_and_a_group_formed_anew_lets_it_go_on() -> None:
    giver, taker = Group(), Group()
    spec = giver.submit("mover")
    for _ in range(12):
        giver.step()
    parcel = leave(giver, taker, "mover")
    assert parcel is not None
    expected = expect(taker.scheduler, "mover", parcel, WIRE)
    assert expected is not None
    other = taker.submit("other")
    run(taker)
    taker.check(other)
    assert taker.scheduler.ledger().stalled_steps == 0
    assert taker.scheduler.ledger().requests.waiting == 1
    taker.scheduler = restarted(taker.scheduler, taker.now, "")
    taker.worker.allocate(taker.num_blocks, taker.num_host_blocks)
    run(taker)
    taker.check(spec)
    assert taker.is_clean()


def test_one_that_goes_on_without_is_served_in_its_turn() -> None:
    giver, taker = Group(), Group()
    spec = giver.submit("mover")
    for _ in range(12):
        giver.step()
    parcel = leave(giver, taker, "mover")
    assert parcel is not None
    expected = expect(taker.scheduler, "mover", parcel, WIRE)
    assert expected is not None
    go_on_without(taker.scheduler, expected)
    run(taker)
    taker.check(spec)
    assert taker.is_clean()


def test_one_whose_blocks_came_can_lose_its_place_and_move_on_again() -> None:
    giver, taker, third = Group(), Group(24, policy=PreemptionPolicy.SWAP, link=1e6), Group()
    spec = giver.submit("mover", 30, 40)
    for _ in range(12):
        giver.step()
    parcel = leave(giver, taker, "mover")
    assert parcel is not None
    expected = expect(taker.scheduler, "mover", parcel, WIRE)
    assert expected is not None
    carry(giver, taker, expected)
    taker.step()
    urgent = taker.submit("urgent", 60, 20, priority=3)
    while not taker.scheduler.ledger().preempted.swapped:
        taker.step()
    parcel = leave(taker, third, "mover")
    assert parcel is not None
    expected = expect(third.scheduler, "mover", parcel, WIRE)
    assert expected is not None
    carry(taker, third, expected)
    run(taker)
    run(third)
    taker.check(urgent)
    third.check(spec)
    assert third.scheduler.ledger().recomputed_tokens == 0
    assert taker.is_clean() and third.is_clean()
