"""Blocks that do not go with a request: it is cheaper without, or they do not fit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from blockyard.scheduler.block_keys import PrefixExtras
from blockyard.scheduler.move_cost import LinkModel
from blockyard.scheduler.parcels import Parcel, consign, expect
from blockyard.scheduler.scarcity import set_host_blocks_aside


def test_cost_decides_at_either_end(kit: Any) -> None:
    giver, quick = kit.Group(), kit.Group(prefill=1e9)
    giver.submit("mover")
    for _ in range(12):
        giver.step()
    dear = LinkModel(0.001, 1.0)
    assert consign(giver.scheduler, "mover", kit.KEY, dear) is None
    assert giver.scheduler.ledger().host_blocks.active == 0
    parcel = kit.leave(giver, quick, "mover")
    assert parcel is not None
    assert expect(quick.scheduler, "mover", parcel, kit.WIRE) is None
    kit.run(quick)
    giver.host.discard(kit.KEY)
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
def test_what_does_not_fit_is_computed_again(
    kit: Any, taker: dict[str, Any], change: Change
) -> None:
    giver, other = kit.Group(), kit.Group(**taker)
    spec = giver.submit("mover")
    for _ in range(12):
        giver.step()
    parcel = kit.leave(giver, other, "mover")
    assert parcel is not None
    assert expect(other.scheduler, "mover", change(parcel), kit.WIRE) is None
    kit.run(other)
    other.check(spec)
    assert other.is_clean()


def test_adapters_are_told_apart(kit: Any) -> None:
    giver, taker = kit.Group(), kit.Group()
    spec = giver.submit("mover")
    for _ in range(12):
        giver.step()
    parcel = consign(giver.scheduler, "mover", kit.KEY, kit.WIRE)
    snapshot = giver.scheduler.snapshot("mover", 0.0)
    assert parcel is not None and snapshot is not None
    adapted = replace(spec, extras=PrefixExtras("poet", "2"))
    taker.scheduler.resume(replace(snapshot, spec=adapted), 0.0)
    assert expect(taker.scheduler, "mover", parcel, kit.WIRE) is None


def test_a_full_host_pool_at_the_giver_sends_nothing(kit: Any) -> None:
    giver = kit.Group()
    giver.submit("mover")
    for _ in range(12):
        giver.step()
    set_host_blocks_aside(giver.scheduler, True)
    assert consign(giver.scheduler, "mover", kit.KEY, kit.WIRE) is None
    set_host_blocks_aside(giver.scheduler, False)
    kit.run(giver)
    assert giver.is_clean()


def test_who_has_nothing_or_more_than_one_choice_sends_nothing(kit: Any) -> None:
    giver = kit.Group()
    giver.submit("fresh")
    giver.submit("forked", num_choices=2)
    assert consign(giver.scheduler, "fresh", kit.KEY, kit.WIRE) is None
    assert consign(giver.scheduler, "unknown", kit.KEY, kit.WIRE) is None
    for _ in range(6):
        giver.step()
    assert consign(giver.scheduler, "forked", kit.KEY, kit.WIRE) is None
    assert consign(giver.scheduler, "fresh", kit.KEY, kit.WIRE) is not None


def test_scored_prompts_are_not_left_unscored(kit: Any) -> None:
    giver, taker = kit.Group(), kit.Group()
    spec = giver.submit("mover")
    for _ in range(12):
        giver.step()
    parcel = consign(giver.scheduler, "mover", kit.KEY, kit.WIRE)
    snapshot = giver.scheduler.snapshot("mover", 0.0)
    assert parcel is not None and snapshot is not None
    scored = replace(spec, sampling=replace(spec.sampling, prompt_logprobs=1))
    choice = replace(snapshot.choices[0], num_scored=20)
    taker.scheduler.resume(replace(snapshot, spec=scored, choices=(choice,)), 0.0)
    assert expect(taker.scheduler, "mover", parcel, kit.WIRE) is None
    taker.scheduler.abort("mover")
    choice = replace(choice, num_scored=29)
    taker.scheduler.resume(replace(snapshot, spec=scored, choices=(choice,)), 0.0)
    assert expect(taker.scheduler, "mover", parcel, kit.WIRE) is not None


def test_a_parcel_that_is_here_already_is_not_taken_in(kit: Any) -> None:
    group = kit.Group()
    spec = group.submit("mover", use_prefix_cache=False)
    for _ in range(12):
        group.step()
    parcel = kit.leave(group, group, "mover")
    assert parcel is not None
    active = group.scheduler.ledger().host_blocks.active
    assert active == parcel.num_blocks
    assert expect(group.scheduler, "mover", parcel, kit.WIRE) is None
    group.scheduler.check()
    assert group.scheduler.ledger().host_blocks.active == active
    kit.run(group)
    group.check(spec)
    group.host.discard(kit.KEY)
    kit.run(group)
    assert group.is_clean()
