"""The shadow against a slow twin that walks everything at every event."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockyard.scheduler.contiguous.shadow import ContiguousShadow
from blockyard.scheduler.contiguous.shadow_report import PolicyReport, summary_line
from blockyard.scheduler.ledger import BlockCounts, GroupLedger, RequestCounts, SlotCounts
from blockyard.scheduler.request import FinishReason, RequestUpdate


@dataclass
class SlowServer:
    """A list of pieces, a list of who waits; nothing is kept that could be counted."""

    policy: str
    capacity: int
    limit: int
    held: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    pieces: list[tuple[int, int, str]] = field(default_factory=list)
    queue: list[str] = field(default_factory=list)
    never_started: int = 0
    evictions: int = 0
    delayed: int = 0
    peak: int = 0
    moves: int = 0

    def size(self, name: str) -> int:
        if self.policy == "max_seq_len":
            return self.limit
        if self.policy == "exact":
            return self.most[name]
        size = 1
        while size < self.held[name]:
            size *= 2
        return min(size, self.limit)

    def holes(self) -> list[tuple[int, int]]:
        found, end = [], 0
        for start, size, _ in [*sorted(self.pieces), (self.capacity, 0, "")]:
            if start > end:
                found.append((end, start - end))
            end = start + size
        return found

    def place(self, name: str) -> bool:
        size = self.size(name)
        for start, room in self.holes():
            if room >= size:
                self.pieces.append((start, size, name))
                return True
        return False

    def admit(self) -> None:
        while self.queue and self.place(self.queue[0]):
            self.queue.pop(0)
            self.peak = max(self.peak, len(self.pieces))

    def arrive(self, name: str, held: int, most: int) -> None:
        self.held[name], self.most[name] = held, most
        self.queue.append(name)
        self.admit()
        self.delayed += name in self.queue

    def grow(self, name: str, held: int) -> None:
        self.held[name] = held
        piece = next((piece for piece in self.pieces if piece[2] == name), None)
        if piece is None or self.size(name) <= piece[1]:
            return
        moved = self.place(name)
        self.pieces.remove(piece)
        self.moves += moved
        if not moved:
            self.evictions += 1
            self.queue.insert(0, name)
        self.admit()

    def end(self, name: str) -> None:
        if name in self.queue:
            self.queue.remove(name)
            self.never_started += 1
        self.pieces = [piece for piece in self.pieces if piece[2] != name]
        self.admit()

    def agrees_with(self, report: PolicyReport) -> None:
        books = report.books
        holes = [size for _, size in self.holes()]
        filled = sum(self.held[name] for _, _, name in self.pieces)
        assert (books.running, report.queued) == (len(self.pieces), len(self.queue))
        assert (books.filled, books.free) == (filled, sum(holes))
        assert (books.largest_hole, books.num_holes) == (max(holes, default=0), len(holes))
        assert books.moves == self.moves
        assert (report.never_started, report.delayed) == (self.never_started, self.delayed)
        assert (report.evictions, report.peak_running) == (self.evictions, self.peak)
        rounding = 0
        if self.policy == "pow2":
            rounding = sum(max(size - self.most[name], 0) for _, size, name in self.pieces)
        assert books.internal == rounding
        assert books.filled + books.reservation + books.internal + books.free == self.capacity


@dataclass
class Live:
    name: str
    prompt: int
    final: int
    most: int
    produced: int = 0
    first_step: int = 0
    end_step: int = 0

    def held(self) -> int:
        return self.prompt + max(self.produced - 1, 0)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), capacity=st.integers(8, 150), limit=st.integers(4, 60))
def test_any_traffic_equals_the_slow_twin(seed: int, capacity: int, limit: int) -> None:
    chance = random.Random(seed)
    shadow = ContiguousShadow(capacity, limit)
    limit = min(limit, capacity)
    twins = [SlowServer(policy, capacity, limit) for policy in ("max_seq_len", "pow2")]
    live: dict[str, Live] = {}
    history: list[tuple[str, Live, int]] = []
    step = 0

    def end(one: Live) -> None:
        one.end_step = step
        history.append(("end", one, step))
        del live[one.name]
        for twin in twins:
            twin.end(one.name)

    for moment in range(40):
        action = chance.random()
        if action < 0.35 and moment < 30:
            prompt = chance.randint(1, max(1, limit // 2))
            asked = chance.randint(1, limit - prompt + 1)
            one = Live(f"r{moment}", prompt, chance.randint(1, asked), prompt + asked - 1)
            max_tokens = None if chance.random() < 0.2 else asked
            one.most = limit if max_tokens is None else one.most
            shadow.arrive(one.name, prompt, max_tokens, moment)
            for twin in twins:
                twin.arrive(one.name, prompt, one.most)
            live[one.name] = one
            history.append(("arrive", one, step))
        elif action < 0.42 and live:
            one = chance.choice(list(live.values()))
            shadow.end(one.name, moment)
            end(one)
        else:
            step += 1
            updates, over = [], []
            for one in list(live.values()):
                if chance.random() < 0.2:
                    continue
                one.produced += 1
                one.first_step = one.first_step or step
                for twin in twins:
                    twin.grow(one.name, one.held())
                over += [one] if one.produced == one.final else []
                reason = FinishReason.LENGTH if one.produced == one.final else None
                updates.append(RequestUpdate(one.name, (1,), reason))
            updates.append(RequestUpdate("nobody", (1,)))
            shadow.advance(updates, moment)
            for one in over:
                end(one)
        shadow.check()
        for twin, report in zip(twins, shadow.report(moment), strict=False):
            twin.agrees_with(report)
    for one in list(live.values()):
        shadow.end(one.name, 40)
        end(one)
    # Now that every end is known, the oracle has seen all of it, in the order of the events.
    oracle = SlowServer("exact", capacity, limit)
    for kind, one, _ in history:
        if kind == "arrive":
            oracle.arrive(one.name, one.held(), one.held())
        else:
            oracle.end(one.name)
    report = shadow.report(40)[2]
    oracle.agrees_with(report)
    assert report.behind_seconds == 0.0


def tokens(name: str, reason: FinishReason | None = None) -> RequestUpdate:
    return RequestUpdate(name, (1,), reason)


def test_the_moment_when_memory_ran_out_is_kept_with_its_figures() -> None:
    shadow = ContiguousShadow(100, 40, began=50.0)
    shadow.arrive("a", 10, 5, 51.0)
    shadow.advance([tokens("a")], 52.0)
    shadow.advance([tokens("a")], 53.0)
    shadow.arrive("b", 10, 5, 54.0)
    shadow.arrive("c", 10, 5, 55.0)
    shadow.arrive("d", 10, 5, 56.0)
    reserving = shadow.report(60.0)[0]
    refusal = reserving.books.first_refusal
    assert refusal is not None
    assert (refusal.needed, refusal.free, refusal.largest_hole) == (40, 20, 20)
    assert (refusal.reserved_idle, refusal.running) == (80 - 11 - 10, 2)
    assert reserving.first_refusal_seconds == 5.0
    assert (reserving.queued, reserving.delayed, reserving.never_started) == (2, 2, 0)
    shadow.end("c", 61.0)
    assert shadow.report(61.0)[0].never_started == 1
    shadow.end("a", 62.0)
    shadow.end("a", 62.0)
    assert shadow.report(62.0)[0].books.running == 2


def test_who_cannot_grow_loses_the_piece_and_comes_first() -> None:
    shadow = ContiguousShadow(24, 16)
    shadow.arrive("a", 8, 9, 0.0)
    shadow.arrive("b", 8, 9, 0.0)
    shadow.arrive("c", 8, 9, 0.0)
    shadow.arrive("d", 1, 2, 0.0)
    moving = shadow.report(0.0)[1]
    assert (moving.books.running, moving.queued) == (3, 1)
    shadow.advance([tokens("a")], 1.0)
    shadow.advance([tokens("a")], 2.0)  # nine slots: 16 are nowhere in one piece
    moving = shadow.report(2.0)[1]
    assert (moving.books.running, moving.queued, moving.evictions) == (2, 2, 1)
    assert moving.books.free == 8  # d would fit, but a stands first
    shadow.end("b", 3.0)
    moving = shadow.report(3.0)[1]
    assert (moving.books.running, moving.queued, moving.books.filled) == (2, 1, 9 + 8)
    shadow.check()


def test_a_pool_smaller_than_the_limit_is_used_whole() -> None:
    shadow = ContiguousShadow(64, 4096)
    shadow.arrive("a", 10, None, 0.0)
    assert shadow.report(0.0)[0].books.running == 1


def test_an_id_used_again_is_another_request() -> None:
    shadow = ContiguousShadow(64, 32)
    shadow.arrive("a", 10, 4, 0.0)
    shadow.arrive("a", 20, 4, 1.0)
    assert [report.books.filled for report in shadow.report(1.0)[:2]] == [20, 20]


def test_one_line_says_it() -> None:
    ledger = GroupLedger(
        BlockCounts(total=1000, free=20, cached=0, active=980, fenced=0),
        SlotCounts(filled=15_520, promised=74, empty_tail=86),
        RequestCounts(running=74, waiting=0, parked=0),
        16,
        1,
        0,
        0,
    )
    shadow = ContiguousShadow(16_000, 1_450)
    for number in range(74):
        shadow.arrive(f"r{number}", 131, 200, 0.0)
    assert summary_line(shadow.report(0.0)[0], ledger) == (
        "contiguous(max_seq_len): 11 running, 9 % of memory holds tokens; "
        "blockyard: 74 running, 97 %"
    )


@pytest.mark.parametrize(("capacity", "limit"), [(0, 10), (10, 0)])
def test_numbers_below_one_are_refused(capacity: int, limit: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ContiguousShadow(capacity, limit)
