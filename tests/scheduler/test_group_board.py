"""Groups in order: the same choice as a look at all of them, and how far each is fed ahead."""

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest

from blockyard.scheduler.asking import Asking
from blockyard.scheduler.block_keys import NO_EXTRAS, block_keys
from blockyard.scheduler.cost_model import CostModel
from blockyard.scheduler.group_board import LEAST_LEAD, MOST_LEAD, GroupBoard, next_lead
from blockyard.scheduler.ledger import BlockCounts, GroupLedger, RequestCounts, SlotCounts
from blockyard.scheduler.placement import Candidate, delay
from blockyard.scheduler.prefix_view import PrefixView
from blockyard.scheduler.standing import Standing, Waiting, Yielding

KEYS = block_keys(tuple(range(80)), 4, NO_EXTRAS)


@dataclass
class Group:
    candidate: Candidate
    prefix: PrefixView
    lead: int = LEAST_LEAD


def group(
    name: str,
    free: int = 10,
    running: int = 0,
    waiting: int = 0,
    places: int = 0,
    known: int = 0,
    queued_tokens: int = 0,
    **more: Any,
) -> Group:
    ledger = GroupLedger(
        blocks=BlockCounts(total=100, free=free, cached=0, active=100 - free, fenced=0),
        slots=SlotCounts(filled=0, promised=0, empty_tail=0),
        requests=RequestCounts(running=running, waiting=waiting, parked=0),
        block_size=4,
        step=0,
        preemptions=0,
        stalled_steps=0,
        queued_tokens=queued_tokens,
    )
    return Group(Candidate(name, ledger, places=places, **more), PrefixView(KEYS[:known]))


def board(*groups: Group) -> GroupBoard:
    made = GroupBoard()
    for each in groups:
        made.put(each)
    return made


def chosen(found: Any) -> str | None:
    return None if found is None else found[0].candidate.group_id


def wants(tokens: int = 4, known: bool = False, places: int = 1, priority: int = 0) -> Asking:
    keys = KEYS if known else ()
    return Asking("r", tokens, priority, places=places, block_keys=keys, block_size=4)


@pytest.mark.parametrize("seed", range(4))
def test_the_best_is_that_of_a_look_at_every_group_whatever_changes(seed: int) -> None:
    drawn = random.Random(seed)
    groups: dict[str, Group] = {}
    made = GroupBoard()

    def one(name: str) -> Group:
        return group(
            name,
            free=drawn.randint(0, 60),
            running=drawn.randint(0, 8),
            waiting=drawn.choice((0, 0, 0, 1, 3)),
            places=drawn.choice((0, 8)),
            known=drawn.choice((0, 0, 5, 20)),
            bound_tokens=drawn.choice((0, 9)),
            bound_places=drawn.choice((0, 2)),
            bound_waiting=drawn.choice((0, 0, 1)),
        )

    for _ in range(300):
        name = f"g{drawn.randrange(12)}"
        if drawn.random() < 0.1 and name in groups:
            del groups[name]
            made.remove(name)
        else:
            groups[name] = one(name)
            made.put(groups[name])
        made.check()
        asked = wants(drawn.choice((4, 80, 200)), drawn.random() < 0.5, drawn.choice((1, 3)))
        known = {name: each.prefix.num_known(asked.block_keys) for name, each in groups.items()}
        delays = [
            delay(replace(each.candidate, known_blocks=known[name]), asked.tokens, asked.places)
            for name, each in groups.items()
        ]
        least = min(delays, default=None)
        found = made.best(asked)
        assert chosen(found) == (None if least is None else least[3])
        if found is not None and least is not None:
            assert found[1] == known[least[3]]
        starts = least[3] if least is not None and least[0] == 0 else None
        assert chosen(made.starting(asked)) == starts


def test_a_group_that_has_no_place_left_cannot_start_anybody() -> None:
    full, half = (
        group("full", free=90, running=8, places=8),
        group("half", free=20, running=6, places=8),
    )
    made = board(full, half)
    assert chosen(made.starting(wants())) == "half"
    assert made.starting(wants(places=3)) is None
    made.put(Group(replace(half.candidate, bound_places=2), half.prefix))
    assert made.starting(wants()) is None
    assert chosen(made.feeding(wants())) is not None


def test_no_group_is_fed_beyond_its_lead() -> None:
    busy = [group(name, free=0, waiting=LEAST_LEAD) for name in "ab"]
    made = board(*busy)
    assert made.starting(wants()) is None and made.feeding(wants()) is None
    made.put(group("a", free=0, waiting=LEAST_LEAD - 1))
    assert chosen(made.feeding(wants())) == "a"
    made.put(group("a", free=0, waiting=LEAST_LEAD - 1, bound_waiting=1))
    assert made.feeding(wants()) is None
    busy[1].lead = LEAST_LEAD + 1
    made.put(busy[1])
    assert chosen(made.feeding(wants())) == "b"


def test_a_known_prefix_is_weighed_against_the_tokens_that_queue_before() -> None:
    def fed(queued: int) -> str | None:
        made = board(
            group("knows", free=0, waiting=2, known=20, queued_tokens=queued),
            group("idle", free=0, waiting=1, queued_tokens=10),
        )
        return chosen(made.feeding(wants(80, known=True)))

    assert fed(60) == "knows"
    assert fed(120) == "idle"


def test_the_more_urgent_goes_before_those_who_fill_a_lead() -> None:
    rates = CostModel(0, 0.0, 0.0)

    def led(priority: int, bound: int = 0) -> Group:
        standing = Standing(Waiting("w", priority, 4), (), 0, 0, 0, rates)
        one = group("a", free=0, waiting=9, bound_waiting=bound)
        return Group(replace(one.candidate, standing=standing), one.prefix)

    assert chosen(board(led(0)).feeding(wants(priority=1))) == "a"
    assert board(led(1)).feeding(wants(priority=1)) is None
    assert board(led(0, bound=LEAST_LEAD)).feeding(wants(priority=1)) is None


def test_the_least_urgent_is_known_as_full_groups_come_and_go() -> None:
    def full(name: str, yields: int, waits: int | None = None) -> Group:
        head = None if waits is None else Waiting("w", waits, 4)
        yielding = (Yielding("y", yields, 1, 4),)
        standing = Standing(head, yielding, 0, 0, 0, CostModel(0, 0.0, 0.0))
        one = group(name)
        return Group(replace(one.candidate, standing=standing), one.prefix)

    made = board(group("empty"), full("a", 3), full("b", 2, waits=5))
    assert made.least_urgent == 2
    made.put(full("b", 9, waits=1))
    made.check()
    assert made.least_urgent == 1
    made.remove("b")
    made.check()
    assert made.least_urgent == 3
    made.put(group("a"))
    assert made.least_urgent > 2**60


def test_a_lead_that_is_used_up_doubles_and_one_that_is_not_shrinks() -> None:
    def after(lead: int, before: int, now: int, others: bool = True) -> int:
        return next_lead(
            lead, group("a", waiting=before - 1, bound_waiting=1).candidate,
            group("a", waiting=now).candidate, others,
        )  # fmt: skip

    assert after(8, before=8, now=0) == 16
    assert after(8, before=8, now=0, others=False) == 8
    assert after(8, before=7, now=0) == 8  # it had not all that it may have
    assert after(MOST_LEAD, before=MOST_LEAD, now=0) == MOST_LEAD
    assert after(8, before=8, now=4) == 8
    assert after(8, before=8, now=5) == 6
    assert after(LEAST_LEAD, before=9, now=9) == LEAST_LEAD
