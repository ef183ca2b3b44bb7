"""The binder against placement itself: the same group, with fewer looks."""

import random
from dataclasses import replace

import pytest

from blockyard.scheduler.ledger import BlockCounts, GroupLedger, RequestCounts, SlotCounts
from blockyard.scheduler.placement import Candidate, choose_group
from blockyard.scheduler.simulated.binder import Binder


class Group:
    """Its free blocks only fall until something changes."""

    def __init__(self, number: int) -> None:
        self.group_id = f"g{number:03}"
        self.free = 100
        self.waiting = self.running = self.looks = 0

    def candidate(self, now: float) -> Candidate:
        self.looks += 1
        blocks = BlockCounts(100, self.free, 0, 100 - self.free, 0)
        slots = SlotCounts((100 - self.free) * 16, 0, 0)
        requests = RequestCounts(self.running, self.waiting, 0)
        ledger = GroupLedger(blocks, slots, requests, 16, 0, 0, 0)
        return Candidate(self.group_id, ledger)


@pytest.mark.parametrize("seed", range(5))
def test_it_chooses_as_placement_does(seed: int) -> None:
    rng = random.Random(seed)
    groups = [Group(number) for number in range(40)]
    binder = Binder(groups)  # type: ignore[arg-type]
    assert binder.choose(10, 0.0) is None
    is_open = [False] * 40
    for index in range(30):
        binder.open(index)
        is_open[index] = True
    looks = choices = 0
    for number in range(1500):
        kind, index = rng.random(), rng.randrange(40)
        group = groups[index]
        if kind < 0.1:
            group.free = rng.randrange(101)
            group.waiting = rng.choice((0, 0, 0, 1, 2))
            group.running = rng.randrange(5)
            binder.note(index)
        elif kind < 0.15:
            (binder.close if is_open[index] else binder.open)(index)
            is_open[index] = not is_open[index]
        elif kind < 0.6:
            group.free = max(0, group.free - rng.randrange(3))
        else:
            tokens = rng.randrange(1, 1700)
            # Some groups know the begin of the prompt, as one in three requests has it.
            known = {
                index: rng.randrange(1, 40)
                for index in binder.open_groups
                if number % 3 == 0 and rng.random() < 0.2
            }
            before = sum(other.looks for other in groups)
            chosen = binder.choose(tokens, 0.0, known)
            looks += sum(other.looks for other in groups) - before
            choices += 1
            there = [
                replace(groups[index].candidate(0.0), known_blocks=known.get(index, 0))
                for index in binder.open_groups
            ]
            expected = choose_group(there, tokens)
            assert (None if chosen is None else groups[chosen].group_id) == expected
        assert len(binder) <= 4 * 40 + 40
    assert looks < choices * 15


def test_bounds_that_never_come_to_the_front_do_not_pile_up() -> None:
    groups = [Group(number) for number in range(8)]
    binder = Binder(groups)  # type: ignore[arg-type]
    for index in range(8):
        binder.open(index)
    for number in range(500):
        # The first stays the best; the others change all the time.
        groups[1 + number % 7].free = 1 + number % 50
        binder.note(1 + number % 7)
        assert binder.choose(1, 0.0) == 0
        assert len(binder) <= 5 * 8
