"""Who in a whole cluster gives way to whom, at what cost, and that no token changes by it."""

from dataclasses import replace
from typing import Any

import pytest

from blockyard.scheduler.cost_model import CostModel
from blockyard.scheduler.ledger import BlockCounts, GroupLedger, RequestCounts, SlotCounts
from blockyard.scheduler.making_way import (
    MakingWay,
    choose_way,
    with_way_made,
)
from blockyard.scheduler.placement import Candidate
from blockyard.scheduler.standing import Standing, Waiting, Yielding
from blockyard.scheduler.way_out import Way, WayOut

SIZE = 16
URGENT = Waiting("urgent", priority=5, tokens=10 * SIZE)
PREFILL = 1000.0
"""Tokens a second: a block takes 16 ms."""


def group(
    name: str,
    *yielding: Yielding,
    free: int = 0,
    places: int = 9,
    waiting: Waiting | None = None,
    link: float = 0.0,
    host: int = 100,
    prefill: float = PREFILL,
) -> Candidate:
    """A full group of 100 blocks; `link` is in blocks a second."""
    standing = Standing(waiting, yielding, places, 0, host, CostModel(1, prefill, link))
    return Candidate(name, books(free, prefill), standing=standing)


def roomy(name: str, free: int = 100, prefill: float = PREFILL) -> Candidate:
    return Candidate(name, books(free, prefill))


def books(free: int, prefill: float) -> GroupLedger:
    return GroupLedger(
        blocks=BlockCounts(total=100, free=free, cached=0, active=100 - free, fenced=0),
        slots=SlotCounts(filled=(100 - free) * SIZE, promised=0, empty_tail=0),
        requests=RequestCounts(running=3, waiting=0, parked=0),
        block_size=SIZE,
        step=1,
        preemptions=0,
        stalled_steps=0,
        prefill_tokens_per_second=prefill,
    )


def one(name: str, blocks: int, priority: int = 0, **more: Any) -> Yielding:
    return Yielding(name, priority, blocks, blocks * SIZE, **more)


def test_the_cheapest_victim_in_the_cluster_gives_way() -> None:
    slow = group("a", one("x", 10), prefill=PREFILL / 2)
    dear = group("b", one("y", 6), one("z", 20), free=3, prefill=PREFILL / 4)
    cheap = group("c", one("w", 10))
    way = choose_way(URGENT, [slow, dear, cheap])
    # Ten blocks to compute again, and it stands while the ten of who came are computed.
    assert way == MakingWay("c", (WayOut("w", Way.RECOMPUTE),), 0, 0.32)


def test_the_least_urgent_give_way_before_the_cheapest() -> None:
    cheap = group("a", one("x", 10, priority=1), link=1e9)
    dear = group("b", one("y", 90), prefill=1.0)
    way = choose_way(URGENT, [cheap, dear])
    assert way is not None and (way.group_id, way.priority) == ("b", 0)


def test_where_nobody_need_give_way_is_best_of_all() -> None:
    behind = Waiting("later", priority=1, tokens=9999)
    open_to_it = group("b", one("y", 3, priority=1), free=10, waiting=behind)
    assert choose_way(URGENT, [group("a", one("x", 10)), open_to_it]) == MakingWay("b")


@pytest.mark.parametrize(
    "other",
    [
        group("a", one("x", 9)),  # not enough blocks
        group("a", one("x", 90, priority=5)),  # an equal yields to nobody
        group("a", one("x", 5), one("y", 90, priority=7)),
        group("a", one("x", 90), waiting=Waiting("before", priority=5, tokens=1)),
        group("a", one("x", 90, has_place=False), places=0),  # a place is wanted too
    ],
)
def test_who_cannot_be_helped_waits(other: Candidate) -> None:
    assert choose_way(URGENT, [other]) is None


def test_a_victim_is_swapped_where_the_link_is_faster_than_computing() -> None:
    def ways(**at: Any) -> list[Way]:
        way = choose_way(URGENT, [group("a", one("x", 6), one("y", 6), **at)])
        assert way is not None
        return [victim.way for victim in way.victims]

    assert ways(link=1000.0) == [Way.SWAP, Way.SWAP]
    assert ways(link=100.0) == [Way.RECOMPUTE, Way.RECOMPUTE]
    assert ways(link=1000.0, host=7) == [Way.SWAP, Way.RECOMPUTE]
    assert ways(link=0.0, prefill=0.0) == [Way.RECOMPUTE, Way.RECOMPUTE], "nothing is measured"


def test_blocks_that_come_over_the_wire_sooner_than_they_are_computed_make_a_move_cheap() -> None:
    large = replace(URGENT, tokens=64 * SIZE)  # more than the other group has

    def seconds(wire: float, host: int = 100, taken: int = 0) -> float:
        full = group("a", one("x", 10), free=55, host=host)
        pool = BlockCounts(total=100, free=100 - taken, cached=0, active=taken, fenced=0)
        told = replace(books(60, PREFILL), host_blocks=pool, wire_bytes_per_second=wire)
        other = replace(roomy("b", 60), ledger=told)
        way = choose_way(large, [full, other])
        assert way is not None and way.victims == (WayOut("x", Way.MOVE, "b"),)
        return way.seconds

    assert seconds(wire=0.0) == 0.16, "it is computed again"
    assert seconds(wire=1000.0) == 0.01
    assert seconds(wire=10.0) == 0.16
    assert seconds(wire=1000.0, host=9) == seconds(wire=1000.0, taken=91) == 0.16, "no room"


def test_a_victim_moves_where_a_group_has_room_and_that_costs_less_than_to_stand() -> None:
    large = replace(URGENT, tokens=64 * SIZE)  # more than the other group has
    full = group("a", one("x", 20), one("y", 45), link=10_000.0)
    taker = roomy("b", free=63)
    way = choose_way(large, [full, taker])
    assert way is not None and way.group_id == "a"
    # x may grow to 40 blocks there, of 43 beyond the spare ones; then there is no room for y.
    assert way.victims == (WayOut("x", Way.MOVE, "b"), WayOut("y", Way.SWAP))
    for other in (
        roomy("b", free=59),  # too little room for what it may grow to
        roomy("b", free=59, prefill=PREFILL / 100),
        group("b", free=59),  # it is full itself
    ):
        way = choose_way(large, [full, other])
        assert way is not None and {victim.way for victim in way.victims} == {Way.SWAP}, other
    bound = group("a", one("x", 20, movable=False), one("y", 45, movable=False))
    way = choose_way(large, [bound, roomy("b", free=59)])
    assert way is not None and {victim.way for victim in way.victims} == {Way.RECOMPUTE}


def test_it_stays_where_moving_costs_more_than_standing() -> None:
    large = replace(URGENT, tokens=30 * SIZE)
    full = group("a", one("x", 30), link=1e9)
    # To stand is to wait for 30 blocks of prompt; to move, to compute 15 of them half as fast.
    way = choose_way(large, [full, roomy("b", free=29, prefill=PREFILL / 9)])
    assert way is not None and way.victims == (WayOut("x", Way.SWAP),)


def test_one_that_waits_where_its_engine_can_make_way_is_left_there() -> None:
    own = group("a", one("x", 10), waiting=URGENT)
    other = group("b", one("y", 10), link=1e9)
    assert choose_way(URGENT, [own, other], waits_at="a") is None
    stuck = group("a", one("x", 90, priority=5), waiting=URGENT)
    way = choose_way(URGENT, [stuck, other], waits_at="a")
    assert way is not None and way.group_id == "b"
    assert choose_way(URGENT, [stuck], waits_at="a") is None


def test_the_next_in_a_burst_finds_what_the_first_has_left() -> None:
    full = group("a", one("x", 10), one("y", 10), places=1)
    way = choose_way(URGENT, [full])
    assert way is not None and [victim.request_id for victim in way.victims] == ["x"]
    full = with_way_made(full, URGENT, way)
    assert full.free_blocks == 0 and full.standing is not None
    assert full.standing.places_left == 1
    way = choose_way(URGENT, [full])
    assert way is not None and [victim.request_id for victim in way.victims] == ["y"]
    assert choose_way(URGENT, [with_way_made(full, URGENT, way)]) is None
