"""Blocks that go with a request change none of its tokens, and nothing is computed again."""

from dataclasses import replace
from typing import Any

import pytest

from blockyard.scheduler.config import PreemptionPolicy
from blockyard.scheduler.explain import WaitReason
from blockyard.scheduler.parcels import expect, go_on_without, take_delivery
from blockyard.scheduler.relief import choose_yielding
from blockyard.scheduler.request import RequestState
from blockyard.scheduler.restart import restarted
from blockyard.scheduler.sampling import SamplingParams


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_that_runs_goes_on_where_it_stood(kit: Any, depth: int) -> None:
    giver, taker = kit.Group(depth=depth), kit.Group(depth=depth)
    spec = giver.submit("mover")
    for _ in range(12):
        giver.step()
    parcel = kit.leave(giver, taker, "mover")
    assert parcel is not None and parcel.num_tokens == 30 + len(taker.tokens["mover"]) - 1
    expected = expect(taker.scheduler, "mover", parcel, kit.WIRE)
    assert expected is not None
    taker.scheduler.check()
    assert not taker.plan(), "it waits for its blocks"
    assert taker.scheduler.explain("mover")[0].reason is WaitReason.TRANSIT
    assert giver.scheduler.ledger().host_blocks.active == parcel.num_blocks
    assert taker.scheduler.ledger().host_blocks.active == parcel.num_blocks
    assert kit.carry(giver, taker, expected) == parcel.num_tokens
    assert taker.member("mover").state is RequestState.PARKED
    kit.run(taker)
    taker.check(spec)
    produced = 40 - (parcel.num_tokens - 30)
    assert taker.computed == produced - 1, "nothing is computed again"
    assert taker.scheduler.ledger().recomputed_tokens == 0
    kit.run(giver)
    assert giver.is_clean() and taker.is_clean()


def test_what_is_missing_at_the_end_is_computed_again(kit: Any) -> None:
    giver, taker = kit.Group(), kit.Group()
    spec = giver.submit("mover")
    for _ in range(12):
        giver.step()
    parcel = kit.leave(giver, taker, "mover")
    assert parcel is not None
    expected = expect(taker.scheduler, "mover", parcel, kit.WIRE)
    assert expected is not None
    assert kit.carry(giver, taker, expected, 3) == 12
    kit.run(taker)
    taker.check(spec)
    assert taker.scheduler.ledger().recomputed_tokens == parcel.num_tokens - 12
    assert taker.is_clean()


def test_blocks_that_the_taker_has_need_not_come(kit: Any) -> None:
    giver, taker = kit.Group(), kit.Group()
    spec = giver.submit("mover")
    for _ in range(12):
        giver.step()
    alike = replace(spec, request_id="alike", sampling=SamplingParams(2))
    taker.scheduler.submit(alike, 0.0)
    taker.tokens["alike"] = []
    kit.run(taker)
    before = taker.computed
    parcel = kit.leave(giver, taker, "mover")
    assert parcel is not None
    expected = expect(taker.scheduler, "mover", parcel, kit.WIRE)
    assert expected is not None and expected.first == 30 // 4
    assert kit.carry(giver, taker, expected) == parcel.num_tokens - expected.first * 4
    kit.run(taker)
    taker.check(spec)
    assert taker.computed - before == 40 - (parcel.num_tokens - 30) - 1
    assert taker.scheduler.ledger().prefix_hit_tokens == expected.first * 4
    assert taker.is_clean()


def test_a_parked_one_goes_with_what_was_swapped_out_and_what_it_still_holds(kit: Any) -> None:
    giver, taker = kit.Group(22, 32, link=1e6, policy=PreemptionPolicy.SWAP), kit.Group()
    old, young = giver.submit("old", 20, 60), giver.submit("young", 20, 40)
    while giver.scheduler.ledger().preempted.swapped == 0:
        giver.step()
    assert choose_yielding(giver.scheduler, 8, 1000) == ("young",)
    assert giver.member("young").host_ids
    parcel = kit.leave(giver, taker, "young")
    assert parcel is not None and parcel.num_tokens == 20 + len(taker.tokens["young"]) - 1
    expected = expect(taker.scheduler, "young", parcel, kit.WIRE)
    assert expected is not None
    kit.carry(giver, taker, expected)
    kit.run(taker)
    kit.run(giver)
    giver.check(old)
    taker.check(young)
    assert taker.scheduler.ledger().recomputed_tokens == 0
    assert giver.is_clean() and taker.is_clean()


def test_one_that_ends_while_its_blocks_come_holds_them_until_nobody_writes(kit: Any) -> None:
    giver, taker = kit.Group(), kit.Group()
    giver.submit("mover")
    for _ in range(12):
        giver.step()
    parcel = kit.leave(giver, taker, "mover")
    assert parcel is not None
    expected = expect(taker.scheduler, "mover", parcel, kit.WIRE)
    assert expected is not None and taker.scheduler.abort("mover")
    taker.scheduler.check()
    assert taker.scheduler.ledger().host_blocks.active == parcel.num_blocks
    assert take_delivery(taker.scheduler, expected, 5) == 0
    assert taker.is_clean()


def test_others_run_while_one_waits_and_a_group_formed_anew_lets_it_go_on(kit: Any) -> None:
    giver, taker = kit.Group(), kit.Group()
    spec = giver.submit("mover")
    for _ in range(12):
        giver.step()
    parcel = kit.leave(giver, taker, "mover")
    assert parcel is not None
    expected = expect(taker.scheduler, "mover", parcel, kit.WIRE)
    assert expected is not None
    other = taker.submit("other")
    kit.run(taker)
    taker.check(other)
    assert taker.scheduler.ledger().stalled_steps == 0
    assert taker.scheduler.ledger().requests.waiting == 1
    taker.scheduler = restarted(taker.scheduler, taker.now, "")
    taker.worker.allocate(taker.num_blocks, taker.num_host_blocks)
    kit.run(taker)
    taker.check(spec)
    assert taker.is_clean()


def test_one_that_goes_on_without_is_served_in_its_turn(kit: Any) -> None:
    giver, taker = kit.Group(), kit.Group()
    spec = giver.submit("mover")
    for _ in range(12):
        giver.step()
    parcel = kit.leave(giver, taker, "mover")
    assert parcel is not None
    expected = expect(taker.scheduler, "mover", parcel, kit.WIRE)
    assert expected is not None
    go_on_without(taker.scheduler, expected)
    kit.run(taker)
    taker.check(spec)
    assert taker.is_clean()


def test_one_whose_blocks_came_can_lose_its_place_and_move_on_again(kit: Any) -> None:
    giver, taker, third = (
        kit.Group(),
        kit.Group(24, policy=PreemptionPolicy.SWAP, link=1e6),
        kit.Group(),
    )
    spec = giver.submit("mover", 30, 40)
    for _ in range(12):
        giver.step()
    parcel = kit.leave(giver, taker, "mover")
    assert parcel is not None
    expected = expect(taker.scheduler, "mover", parcel, kit.WIRE)
    assert expected is not None
    kit.carry(giver, taker, expected)
    taker.step()
    urgent = taker.submit("urgent", 60, 20, priority=3)
    while not taker.scheduler.ledger().preempted.swapped:
        taker.step()
    parcel = kit.leave(taker, third, "mover")
    assert parcel is not None
    expected = expect(third.scheduler, "mover", parcel, kit.WIRE)
    assert expected is not None
    kit.carry(taker, third, expected)
    kit.run(taker)
    kit.run(third)
    taker.check(urgent)
    third.check(spec)
    assert third.scheduler.ledger().recomputed_tokens == 0
    assert taker.is_clean() and third.is_clean()
