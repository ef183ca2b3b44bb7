"""Failures of preemption and swapping known from the field, as black-box cases."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from blockyard.scheduler.config import PreemptionPolicy

Make = Callable[..., Any]
AUTO, SWAP, RECOMPUTE = PreemptionPolicy.AUTO, PreemptionPolicy.SWAP, PreemptionPolicy.RECOMPUTE
FAST, SLOW = 100.0, 0.01


def fill(rig: Any, prompt_of: Make, count: int, prompt: int, max_tokens: int) -> None:
    for index in range(count):
        rig.submit(str(index), prompt_of(prompt, index), max_tokens)


@pytest.mark.parametrize("policy", PreemptionPolicy)
@pytest.mark.parametrize("num_host_blocks", [0, 1, 8])
def test_o11_the_host_runs_out(
    policy: PreemptionPolicy, num_host_blocks: int, make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(
        num_blocks=24,
        num_host_blocks=num_host_blocks,
        policy=policy,
        max_step_tokens=48,
        link_rate=FAST,
        prefill_rate=4.0,
    )
    fill(rig, prompt_of, count=12, prompt=12, max_tokens=40)
    rig.finish()
    ledger = rig.scheduler.ledger()
    assert ledger.preempted.swapped + ledger.preempted.recomputed == ledger.preemptions > 0
    assert ledger.recomputed_tokens > 0, "when the host is full blocks are dropped"
    # `swap` saves a whole request or nothing.
    enough = {AUTO: 1, SWAP: 8, RECOMPUTE: 99}[policy]
    assert (ledger.preempted.swapped > 0) == (num_host_blocks >= enough)
    assert len(rig.ended) == 12


def test_with_a_full_host_the_last_blocks_make_room_for_those_before(
    make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(
        num_blocks=16, num_host_blocks=2, max_step_tokens=64, link_rate=FAST, prefill_rate=4.0
    )
    rig.submit("old", prompt_of(28), max_tokens=30, use_prefix_cache=False)
    rig.submit("young", prompt_of(24, 1), max_tokens=8, use_prefix_cache=False)
    rig.finish()
    ledger = rig.scheduler.ledger()
    # Of its 8 blocks the old one took 6, each saved in its turn; the two before them came back
    # with the two that were held, so four were computed again.
    assert (ledger.preempted.blocks_out, ledger.preempted.blocks_in) == (6, 2)
    assert ledger.recomputed_tokens == 4 * 4


@pytest.mark.parametrize("policy", [SWAP, AUTO])
@pytest.mark.parametrize("seed", range(2))
def test_o12_the_right_bytes_come_back_under_load(
    policy: PreemptionPolicy, seed: int, make_rig: Make
) -> None:
    rng = random.Random(seed)
    rig = make_rig(
        num_blocks=32,
        num_host_blocks=64,
        policy=policy,
        ranks=2,
        max_running=12,
        max_step_tokens=48,
        link_rate=FAST,
        prefill_rate=4.0,
    )
    for wave in range(5):
        for index in range(12):
            prompt = rng.choices(range(97), k=rng.randint(40, 60))
            rig.submit(f"{wave} {index}", prompt, max_tokens=60)
        while rig.live():
            if rig.in_flight and rng.random() < 0.8:
                rig.commit()
            if rig.unacknowledged and rng.random() < 0.6:
                rig.acknowledge(rng.choice(rig.unacknowledged))
            if not rig.in_flight:
                rig.plan()
            if rig.live() and rng.random() < 0.01:
                rig.abort(rng.choice(rig.live()))
    rig.finish()
    counts = rig.scheduler.ledger().preempted
    assert counts.blocks_in > 20 and counts.swapped > 10


@pytest.mark.parametrize("policy", PreemptionPolicy)
def test_o13_cancels_in_every_state(policy: PreemptionPolicy, make_rig: Make) -> None:
    rng = random.Random(7)
    rig = make_rig(
        num_blocks=24,
        num_host_blocks=8,
        policy=policy,
        max_running=4,
        max_step_tokens=20,
        ranks=2,
        link_rate=FAST,
        prefill_rate=4.0,
    )
    for wave in range(30):
        for index in range(8):
            prompt = rng.choices(range(97), k=rng.randint(4, 40))
            rig.submit(f"{wave} {index}", prompt, rng.randint(1, 40), rng.choice((0, 0, 1)))
        for _ in range(rng.randint(3, 25)):
            if rig.in_flight and rng.random() < 0.8:
                rig.commit()
            if rig.unacknowledged and rng.random() < 0.6:
                rig.acknowledge(rng.choice(rig.unacknowledged))
            if not rig.in_flight:
                rig.plan()
            if rig.live() and rng.random() < 0.1:
                rig.abort(rng.choice(rig.live()))
            rig.check()
        for name in rig.live():
            if rng.random() < 0.3:
                rig.abort(name)
        if len(rig.live()) > 16:
            rig.finish()
    rig.finish()
    rig.submit("last", [1, 2, 3], max_tokens=3)
    assert rig.step(), "a small request is served at once"
    rig.finish()


def test_in_auto_only_as_much_is_taken_as_is_needed(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(
        num_blocks=16, num_host_blocks=8, max_step_tokens=64, link_rate=FAST, prefill_rate=4.0
    )
    rig.submit("old", prompt_of(28), max_tokens=16)
    rig.submit("young", prompt_of(24, 1), max_tokens=8)
    while not (ledger := rig.scheduler.ledger()).requests.parked:
        rig.step()
    assert (ledger.preempted.swapped, ledger.preempted.blocks_out) == (1, 1)
    assert ledger.blocks.active == 16 and ledger.host_blocks.active == 1
    rig.finish()
    ledger = rig.scheduler.ledger()
    assert ledger.preempted.blocks_in == ledger.preempted.blocks_out
    assert ledger.recomputed_tokens == 0 and rig.ended == ["old", "young"]


def test_in_auto_the_cheaper_way_is_taken(make_rig: Make, prompt_of: Make) -> None:
    for link, swapped in ((FAST, True), (SLOW, False)):
        rig = make_rig(
            num_blocks=16, num_host_blocks=16, max_step_tokens=64, link_rate=link, prefill_rate=4.0
        )
        rig.submit("old", prompt_of(28), max_tokens=16)
        rig.submit("young", prompt_of(24, 1), max_tokens=8)
        rig.finish()
        counts = rig.scheduler.ledger().preempted
        assert (counts.swapped > 0, counts.recomputed > 0) == (swapped, not swapped)
        # One block out and back at the link's rate; four tokens at four tokens a second.
        if swapped:
            assert counts.swap_estimated_seconds == pytest.approx(counts.blocks_out * 2 / FAST)
        else:
            assert counts.recompute_estimated_seconds == pytest.approx(
                rig.scheduler.ledger().recomputed_tokens / 4.0
            )


def test_in_auto_a_place_alone_takes_no_blocks(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=40, max_running=1)
    rig.submit("low", prompt_of(11), max_tokens=20)
    rig.step()
    rig.step()
    rig.submit("high", prompt_of(9, 1), max_tokens=4, priority=1)
    rig.step()
    ledger = rig.scheduler.ledger()
    assert (ledger.requests.parked, ledger.preempted.held) == (1, 1)
    assert ledger.slots.filled >= 12
    rig.finish()
    assert rig.scheduler.ledger().recomputed_tokens == 0
    assert rig.computed_tokens == 11 + 19 + 9 + 3


def test_a_parked_request_gives_its_blocks_to_who_needs_them(
    make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=12, max_running=1, max_step_tokens=48)
    rig.submit("low", prompt_of(30), max_tokens=10)
    rig.step()
    rig.submit("high", prompt_of(40, 1), max_tokens=8, priority=1)
    rig.finish()
    ledger = rig.scheduler.ledger()
    assert rig.ended == ["high", "low"]
    assert ledger.preemptions == 1 and ledger.recomputed_tokens > 0


def test_swap_saves_all_that_is_its_own_and_keeps_what_is_shared(
    make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=15, num_host_blocks=8, policy=SWAP, max_step_tokens=64)
    shared = prompt_of(16)
    rig.submit("old", shared + prompt_of(15, 1), max_tokens=14)
    rig.step()
    rig.submit("young", shared + prompt_of(12, 2), max_tokens=10)
    while not (ledger := rig.scheduler.ledger()).requests.parked:
        rig.step()
    assert ledger.preempted.blocks_out == ledger.host_blocks.active == 5
    assert ledger.blocks.active == 11, "its first 4 are the old one's too"
    rig.finish()
    assert rig.scheduler.ledger().recomputed_tokens == 0


def test_what_the_index_still_has_is_not_brought_back(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(
        num_blocks=20, num_host_blocks=12, max_running=1, policy=SWAP, max_step_tokens=64
    )
    rig.submit("low", prompt_of(32), max_tokens=8)
    rig.step()
    rig.step()
    rig.submit("high", prompt_of(8, 1), max_tokens=2, priority=1)
    rig.finish()
    counts = rig.scheduler.ledger().preempted
    # All 9 were saved; 8 full ones were still there when it came back.
    assert (counts.blocks_out, counts.blocks_in) == (9, 1)
    assert rig.scheduler.ledger().recomputed_tokens == 0


def test_an_aborted_parked_request_leaves_nothing_on_either_side(
    make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(
        num_blocks=16, num_host_blocks=8, max_step_tokens=64, link_rate=FAST, prefill_rate=4.0
    )
    rig.submit("old", prompt_of(28), max_tokens=16)
    rig.submit("young", prompt_of(24, 1), max_tokens=8)
    while not rig.scheduler.ledger().requests.parked:
        rig.plan()
        parked = rig.scheduler.ledger().requests.parked
        if parked:
            rig.abort("young")  # while the copy out is under way
            rig.check()
        rig.commit()
        if parked:
            break
        rig.acknowledge(rig.unacknowledged[-1])
    rig.check()
    assert rig.scheduler.ledger().host_blocks.fenced == 1
    rig.finish()
    assert rig.ended == ["old"]
