"""Moves of blocks beside the steps: random plans on lanes that do their work late, beside a cache
that does everything at once."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from blockyard.cuda.backend import AttentionBatch
from blockyard.scheduler.plan import BlockCopy, StepPlan, StepResult
from blockyard.workers.block_transfers import BlockTransfers
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.move_lanes import InlineLane, Ticket, lanes_of

BLOCKS, HOST_BLOCKS, SIZE = 10, 8, 4
GEOMETRY = KVGeometry(1, 1, 1, SIZE, torch.float32)


@dataclass
class LateWork:
    """Work that is done when somebody must have it, or when the test has it done.

    What it moves it takes as it is then: whoever goes on too early finds the wrong numbers.
    """

    work: Callable[[], None]
    before: "LateWork | None"
    after: Sequence[Ticket]
    over: bool = False

    def done(self) -> bool:
        return self.over

    def wait(self) -> None:
        if self.over:
            return
        for ticket in (*([self.before] if self.before else ()), *self.after):
            ticket.wait()
        self.work()
        self.over = True

    hold = wait

    def seconds(self) -> float:
        return 0.5


@dataclass
class LateLane:
    """Keeps its own order, and no other."""

    given: list[LateWork] = field(default_factory=list)

    def run(self, work: Callable[[], None], after: Sequence[Ticket]) -> LateWork:
        self.given.append(LateWork(work, self.given[-1] if self.given else None, after))
        return self.given[-1]

    def waiting(self) -> list[LateWork]:
        return [work for work in self.given if not work.over]


class Group:
    """What a scheduler and a worker do to a pool, by the laws of blocks: chance decides the rest.

    A *holder* has device blocks or, once swapped out, host blocks. Each step some compute: they
    read what they have and write to their last block. Blocks of those who end come back when the
    step that touched them last is finished; those that were saved may be given out at once.
    """

    def __init__(self, seed: int, lanes: Any) -> None:
        self.chance = random.Random(seed)
        self.cache = KVCache(GEOMETRY, BLOCKS, torch.device("cpu"), HOST_BLOCKS)
        self.cache.blocks.fill_(-1)
        self.cache.host_blocks.fill_(-1)
        self.transfers = BlockTransfers(self.cache, lanes)
        self.free = list(range(BLOCKS))
        self.host_free = list(range(HOST_BLOCKS))
        self.fenced: list[tuple[int, list[int], list[int]]] = []
        self.tables: dict[int, list[int]] = {}
        self.saved: dict[int, list[int]] = {}
        self.expected: dict[int, list[float]] = {}
        self.step = self.names = 0
        self.results: list[StepResult] = []

    def run(self) -> None:
        self.step += 1
        self._open_fences()
        outs, copies, ins = self._swap_some_out(), [], self._bring_some_back()
        self._begin_some()
        moved_in = {move.destination for move in ins}
        names = [name for name, blocks in self.tables.items() if blocks[-1] not in moved_in]
        if names and self.free and self.chance.random() < 0.3:
            name = self.chance.choice(names)  # a block of its own in place of its last
            target = self.free.pop(self.chance.randrange(len(self.free)))
            copies.append(BlockCopy(self.tables[name][-1], target))
            self.fenced.append((self.step, [self.tables[name][-1]], []))
            self.tables[name][-1] = target
        running = [name for name in self.tables if self.chance.random() < 0.6]
        batch = self._batch(running)
        plan = StepPlan(
            *(self.step, (), (), (), (), (), (), (), ()),
            swap_outs=tuple(outs),
            copies=tuple(copies),
            swap_ins=tuple(ins),
        )
        self.transfers.begin(plan, batch)
        for name in running:
            self._compute(name)
        self.results.append(self.transfers.tell(StepResult(self.step, ())))
        for name in [name for name in self.tables if self.chance.random() < 0.1]:
            self.fenced.append((self.step, self.tables.pop(name), []))
            del self.expected[name]

    def _open_fences(self) -> None:
        """What the rank has finished it may use again, and no more."""
        done = self.transfers.finished_step
        for fence in [fence for fence in self.fenced if fence[0] <= done]:
            self.free += fence[1]
            self.host_free += fence[2]
            self.fenced.remove(fence)

    def _swap_some_out(self) -> list[BlockCopy]:
        moves: list[BlockCopy] = []
        for name in [name for name in self.tables if self.chance.random() < 0.3]:
            blocks = self.tables[name]
            if len(blocks) <= len(self.host_free):
                hosts = [self.host_free.pop() for _ in blocks]
                moves += map(BlockCopy, blocks, hosts)
                self.saved[name] = hosts
                self.free += self.tables.pop(name)  # for whoever comes in this very step
        return moves

    def _bring_some_back(self) -> list[BlockCopy]:
        moves: list[BlockCopy] = []
        for name in [name for name in self.saved if self.chance.random() < 0.4]:
            hosts = self.saved[name]
            if len(hosts) <= len(self.free):
                self.chance.shuffle(self.free)
                self.tables[name] = [self.free.pop() for _ in hosts]
                moves += map(BlockCopy, hosts, self.tables[name])
                self.fenced.append((self.step, [], self.saved.pop(name)))
        return moves

    def _begin_some(self) -> None:
        if self.free and self.chance.random() < 0.7:
            self.names += 1
            count = self.chance.randint(1, min(3, len(self.free)))
            self.chance.shuffle(self.free)
            self.tables[self.names] = [self.free.pop() for _ in range(count)]
            self.expected[self.names] = []

    def _batch(self, running: list[int]) -> AttentionBatch | None:
        if not running:
            return None
        tables = np.zeros((len(running), BLOCKS), dtype=np.int32)
        for row, name in enumerate(running):
            tables[row, : len(self.tables[name])] = self.tables[name]
        lengths = np.array([SIZE * len(self.tables[name]) for name in running], dtype=np.int32)
        counts = np.array(
            [1 if self.expected[name] else SIZE * len(self.tables[name]) for name in running],
            dtype=np.int32,
        )
        slots = torch.zeros(int(counts.sum()), dtype=torch.int64)
        return AttentionBatch(counts, lengths, torch.from_numpy(tables), slots, SIZE, tables)

    def _compute(self, name: int) -> None:
        """Read all that it has, then write: everything at first, later its last block alone."""
        blocks, known = self.tables[name], self.expected[name]
        if known:
            found = self.cache.blocks[blocks].flatten(1)
            assert found.eq(torch.tensor(known)[:, None]).all(), f"step {self.step}, {name}"
        else:
            self.expected[name] = known = [0.0] * len(blocks)
            for place, block in enumerate(blocks):
                known[place] = self.step * 100 + name + place / 10
                self.cache.blocks[block].fill_(known[place])
        known[-1] = self.step * 100.0 + name
        self.cache.blocks[blocks[-1]].fill_(known[-1])


@pytest.mark.parametrize("seed", range(12))
def test_no_block_is_read_or_used_again_before_its_moves(seed: int) -> None:
    lanes = LateLane(), LateLane()
    group = Group(seed, lanes)
    for _ in range(150):
        group.run()
        for lane in lanes:  # some work ends by itself, in one lane sooner than in the other
            waiting = lane.waiting()
            for work in waiting[: group.chance.randint(0, len(waiting))]:
                if all(ticket.done() for ticket in work.after) and group.chance.random() < 0.5:
                    work.wait()
    late = [result for result in group.results if result.moving]
    assert len(late) > 20, "steps never ended before their moves"
    group.transfers.finish()
    assert group.transfers.finished_step == group.step
    moved = sum(result.moved_blocks for result in group.results)
    moved += group.transfers.tell(StepResult(group.step, ())).moved_blocks
    begun: list[Any] = [given.work for lane in lanes for given in lane.given]
    assert moved == sum(len(each.args[0]) for each in begun)


def test_at_once_a_step_is_over_with_its_moves() -> None:
    group = Group(0, lanes_of(torch.device("cpu")))
    for _ in range(60):
        group.run()
    assert not any(result.moving for result in group.results)
    assert sum(result.moved_blocks for result in group.results) > 20


def test_a_step_waits_for_the_moves_that_it_meets_alone() -> None:
    out, back = LateLane(), LateLane()
    cache = KVCache(GEOMETRY, 6, torch.device("cpu"), 6)
    transfers = BlockTransfers(cache, (out, back))
    tables = np.array([[3, 4]], dtype=np.int32)
    batch = AttentionBatch(
        np.array([1], dtype=np.int32),
        np.array([SIZE + 1], dtype=np.int32),
        torch.from_numpy(tables),
        torch.zeros(1, dtype=torch.int64),
        SIZE,
        tables,
    )
    moves = [BlockCopy(0, 0), BlockCopy(3, 1), BlockCopy(4, 2)]
    nothing = ((),) * 8
    transfers.begin(StepPlan(1, *nothing, swap_outs=tuple(moves)), batch)
    # Block 4 is written to; block 3 is read, as the move does, and block 0 is another's.
    assert [work.over for work in out.given] == [True, False]
    told = transfers.tell(StepResult(1, ()))
    assert (told.moving, told.moved_blocks, told.copy_seconds) == (True, 1, 0.5)
    assert transfers.finished_step == 0
    transfers.begin(StepPlan(2, *nothing, swap_ins=(BlockCopy(5, 1), BlockCopy(4, 2))), None)
    assert not any(work.over for work in back.given)
    # What comes back to a block goes after what leaves it.
    transfers.begin(StepPlan(3, *nothing, swap_ins=(BlockCopy(3, 0),)), None)
    back.given[-1].wait()
    assert all(work.over for work in (*out.given, *back.given))
    assert transfers.finished_step == 3


def test_a_copy_waits_for_what_brings_its_block() -> None:
    out, back = LateLane(), LateLane()
    cache = KVCache(GEOMETRY, 4, torch.device("cpu"), 2)
    transfers = BlockTransfers(cache, (out, back))
    cache.host_blocks[1].fill_(7)
    nothing = ((),) * 8
    transfers.begin(StepPlan(1, *nothing, swap_ins=(BlockCopy(1, 2),)), None)
    transfers.begin(StepPlan(2, *nothing, copies=(BlockCopy(2, 3),)), None)
    assert cache.blocks[3].eq(7).all()
    with pytest.raises(ValueError, match="block 9 is copied"):
        transfers.begin(StepPlan(3, *nothing, copies=(BlockCopy(9, 3),)), None)


def test_inline_lanes_tell_what_moves_took() -> None:
    ran: list[int] = []
    ticket = InlineLane().run(lambda: ran.append(1), ())
    assert ran == [1] and ticket.done() and ticket.seconds() > 0
