"""Real schedulers whose victims go as was decided elsewhere: no token changes by it."""

from dataclasses import dataclass, field, replace

from blockyard.scheduler.config import PreemptionPolicy, SchedulerConfig
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.making_way import choose_way, order_ways_out, take_movers
from blockyard.scheduler.placement import Candidate
from blockyard.scheduler.request import RequestSpec, RequestState
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.standing import Waiting, standing_of
from blockyard.scheduler.way_out import Way, WayOut
from blockyard.workers.config import WorkerConfig
from blockyard.workers.fake import WitnessWorker, witness_generate

PREFILL = 1000.0
"""Tokens a second."""
VOCAB = 97


@dataclass
class Group:
    """A real scheduler over a witness."""

    name: str
    num_blocks: int = 24
    prefill_rate: float = PREFILL
    link_rate: float = 0.0
    tokens: dict[str, list[int]] = field(default_factory=dict)
    specs: dict[str, RequestSpec] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        limits = SchedulerConfig(256, 4, 8, 32, 64, PreemptionPolicy.AUTO)
        rates = RateMeter(1, self.prefill_rate, self.link_rate)
        self.scheduler = Scheduler(limits, self.num_blocks, 16, rates)
        self.worker = WitnessWorker(WorkerConfig("", 256, block_size=4), VOCAB)
        self.worker.allocate(self.num_blocks, 16)

    def submit(self, name: str, prompt: int, max_tokens: int, priority: int = 0) -> None:
        sampling = SamplingParams(max_tokens)
        start = sum(name.encode())
        tokens = tuple((start + place) % VOCAB for place in range(prompt))
        spec = RequestSpec(name, tokens, sampling, priority)
        self.scheduler.submit(spec, self.now)
        self.specs[name], self.tokens[name] = spec, []

    def step(self) -> None:
        self.now += 1.0
        plan = self.scheduler.plan(self.now)
        if plan is not None:
            result = replace(self.worker.execute(plan), compute_seconds=0.0, copy_seconds=0.0)
            for update in self.scheduler.commit(result, self.now):
                self.tokens[update.request_id].extend(update.token_ids)
            self.scheduler.acknowledge(plan.step)
        self.scheduler.check()

    def candidate(self) -> Candidate:
        return Candidate(self.name, self.scheduler.ledger(), standing=standing_of(self.scheduler))

    def state(self, name: str) -> RequestState:
        (member,) = self.scheduler.roster.members(name)
        return member.state

    def hand_movers_to(self, taker: "Group") -> list[str]:
        moved = []
        for mover in take_movers(self.scheduler):
            assert mover.taker == taker.name
            snapshot = self.scheduler.snapshot(mover.request_id, self.now)
            assert snapshot is not None and self.scheduler.abort(mover.request_id)
            taker.scheduler.resume(snapshot, taker.now)
            taker.specs[mover.request_id] = self.specs.pop(mover.request_id)
            taker.tokens[mover.request_id] = self.tokens.pop(mover.request_id)
            moved.append(mover.request_id)
        return moved

    def finish(self) -> None:
        for _ in range(2000):
            if not self.scheduler.has_work:
                break
            self.step()
        for name, spec in self.specs.items():
            limit = spec.sampling.max_tokens or 0
            assert self.tokens[name] == witness_generate(spec.prompt_token_ids, limit, VOCAB), name


def test_in_real_schedulers_the_victim_goes_as_was_decided_and_no_token_changes() -> None:
    full, taker = Group("full", num_blocks=52), Group("taker", num_blocks=40)
    for number in range(6):
        full.submit(f"r{number}", 20, 40)
    taker.submit("other", 40, 30)
    for _ in range(14):
        full.step()
        taker.step()
    needy = Waiting("urgent", 3, 116)
    way = choose_way(needy, [full.candidate(), taker.candidate()])
    assert way is not None and way.group_id == "full"
    moves, *stay = way.victims
    assert (moves.request_id, moves.way) == ("r5", Way.MOVE)
    assert stay and {each.way for each in stay} == {Way.RECOMPUTE}, "there is no more room"
    assert order_ways_out(full.scheduler, "urgent", way.victims) == 1 + len(stay)
    full.step()
    assert full.scheduler.ledger().preemptions == 0, "nobody has come"
    full.submit("urgent", 116, 8, priority=3)
    while not full.tokens["urgent"]:
        full.step()
    assert full.hand_movers_to(taker) == ["r5"]
    counts = full.scheduler.ledger().preempted
    told = counts.moved, counts.recomputed, counts.ordered
    assert told == (1, len(stay), 1 + len(stay))
    full.finish()
    taker.finish()
    assert set(taker.specs) == {"other", "r5"}


def test_what_was_decided_for_one_does_not_hold_for_another() -> None:
    full = Group("full", link_rate=1e6)
    full.submit("old", 20, 40)
    full.submit("young", 20, 40)
    for _ in range(12):
        full.step()
    order_ways_out(full.scheduler, "urgent", (WayOut("young", Way.MOVE, "b"),))
    full.submit("hurry", 40, 8, priority=3)
    full.finish()
    counts = full.scheduler.ledger().preempted
    assert counts.swapped and not (counts.moved or counts.ordered)
    assert take_movers(full.scheduler) == ()


def test_one_that_has_other_choices_stays_though_it_was_to_move() -> None:
    full = Group("full")
    full.submit("old", 20, 40)
    pair = RequestSpec("pair", tuple(range(20)), SamplingParams(40), num_choices=2)
    full.scheduler.submit(pair, full.now)
    full.tokens["pair"] = []
    for _ in range(12):
        full.step()
    assert order_ways_out(full.scheduler, "hurry", (WayOut("pair", Way.MOVE, "b"),)) == 2
    full.submit("hurry", 60, 8, priority=3)
    while not full.tokens["hurry"]:
        full.step()
        assert take_movers(full.scheduler) == (), "a journal has all choices of a request"
    assert full.scheduler.ledger().preempted.moved
    full.finish()
    assert len(full.tokens["pair"]) == 80


def test_one_that_is_swapped_by_order_is_swapped_though_that_is_dearer() -> None:
    full = Group("full", link_rate=0.001)
    full.submit("old", 20, 40)
    full.submit("young", 20, 40)
    for _ in range(12):
        full.step()
    order_ways_out(full.scheduler, "hurry", (WayOut("young", Way.SWAP),))
    full.submit("hurry", 40, 8, priority=3)
    full.finish()
    counts = full.scheduler.ledger().preempted
    assert counts.ordered and counts.blocks_out > 0


def test_a_group_that_has_room_tells_nothing_and_one_that_is_full_tells_who_would_yield() -> None:
    full = Group("full")
    assert standing_of(full.scheduler) is None
    full.submit("old", 20, 40)
    full.submit("young", 20, 40)
    full.submit("third", 60, 9)
    for _ in range(6):
        full.step()
    standing = standing_of(full.scheduler)
    assert standing is not None and standing.waiting is not None
    assert (standing.waiting.request_id, standing.waiting.tokens) == ("third", 60)
    assert [each.request_id for each in standing.yielding] == ["young", "old"]
    assert all(each.blocks and each.movable and each.has_place for each in standing.yielding)
    full.finish()
