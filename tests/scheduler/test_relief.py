"""Who gives requests to whom, how many, and that nothing goes back and forth."""

from dataclasses import replace

import pytest

from blockyard.scheduler.ledger import BlockCounts, GroupLedger, RequestCounts, SlotCounts
from blockyard.scheduler.placement import Candidate
from blockyard.scheduler.relief import Relief, choose_relief


def group(
    name: str, free: int, running: int, waiting: int = 0, parked: int = 0, queued_tokens: int = 0
) -> Candidate:
    active = 100 - free
    ledger = GroupLedger(
        blocks=BlockCounts(total=100, free=free, cached=0, active=active, fenced=0),
        slots=SlotCounts(filled=active * 16, promised=0, empty_tail=0),
        requests=RequestCounts(running=running, waiting=waiting, parked=parked),
        block_size=16,
        step=1,
        preemptions=0,
        stalled_steps=0,
        queued_tokens=queued_tokens,
    )
    return Candidate(name, ledger)


FULL = group("a", free=0, running=10, waiting=2, parked=2, queued_tokens=400)
EMPTY = group("b", free=100, running=0)


def test_a_full_group_gives_half_of_its_queue_to_an_empty_one() -> None:
    # 80 of 100 blocks may be had, and what comes may double: 640 tokens.
    assert choose_relief([FULL, EMPTY]) == Relief("a", "b", 2, 640)
    assert choose_relief([EMPTY, FULL]) == choose_relief([FULL, EMPTY])


@pytest.mark.parametrize(
    "other",
    [
        group("b", free=20, running=1),  # what it has left is for those that it runs
        group("b", free=100, running=10),  # its places are as full as ours
        group("b", free=100, running=0, waiting=1),
        group("b", free=100, running=0, parked=1),
        replace(EMPTY, bound_tokens=16 * 80),  # others are on their way there
        group("b", free=25, running=0),  # five blocks are 40 tokens, the least has 100
    ],
)
def test_nothing_moves_where_nobody_is_helped(other: Candidate) -> None:
    assert choose_relief([FULL, other]) is None


def test_who_has_nobody_waiting_gives_nothing() -> None:
    assert choose_relief([group("a", free=0, running=10), EMPTY]) is None
    assert choose_relief([]) is None


def test_the_longest_queue_gives_to_the_emptiest_pool() -> None:
    longer = group("c", free=0, running=10, waiting=9, queued_tokens=900)
    less = group("d", free=60, running=0)
    assert choose_relief([FULL, less, longer, EMPTY]) == Relief("c", "b", 5, 640)
