"""Failures known from the field, as black-box cases against the witness."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from blockyard.scheduler.request import FinishReason

Make = Callable[..., Any]


def test_o01_prompt_lengths_around_a_block(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=64, block_size=16)
    for length in (1, 15, 16, 17, 31, 32, 33):
        for copy in ("first", "second"):
            rig.submit(f"{length} {copy}", prompt_of(length), max_tokens=4)
        rig.finish()
    for length in (16, 32):
        rig.submit(f"{length} third", prompt_of(length), max_tokens=4)
        rig.submit(f"{length} fourth", prompt_of(length), max_tokens=4)
    rig.finish()
    assert len(rig.ended) == 18


def test_o08_nobody_preempts_everybody(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=20, max_running=16, max_step_tokens=64)
    for index in range(10):
        rig.submit(str(index), prompt_of(24, index), max_tokens=48)
    rig.finish()
    assert rig.ended == sorted(rig.ended), "equals end in the order in which they came"
    assert rig.scheduler.ledger().preemptions > 0
    useful = 10 * (24 + 48 - 1)
    assert rig.computed_tokens < 2 * useful


def test_o09_small_requests_pass_a_big_one_but_not_for_ever(
    make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=32, max_running=16, max_step_tokens=64)
    rig.submit("A", prompt_of(76), max_tokens=5)
    rig.step()
    rig.submit("B", prompt_of(76, 1), max_tokens=5)
    for index in range(10):
        rig.submit(f"C{index}", prompt_of(5, index), max_tokens=4)
    rig.step()
    rig.step()
    assert "C0" in rig.started and "B" not in rig.started
    for index in range(10, 200):
        rig.submit(f"C{index}", prompt_of(5, index), max_tokens=4)
        rig.step()
    assert rig.started.index("B") <= 18
    rig.finish()


def test_a_big_request_is_passed_a_bounded_number_of_times(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=32, max_running=16, max_step_tokens=64)
    rig.submit("A", prompt_of(60), max_tokens=60)
    rig.step()
    rig.submit("B", prompt_of(76, 1), max_tokens=5)
    for index in range(50):
        rig.submit(f"C{index}", prompt_of(5, index), max_tokens=2)
    while "A" in rig.live():
        rig.step()
    assert rig.started[:2] == ["A", "C0"]
    assert sum(name.startswith("C") for name in rig.started) == 16
    rig.finish()


def test_o10_high_priority_takes_the_slots_of_low(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=200, max_running=2)
    for name in ("low 0", "low 1"):
        rig.submit(name, prompt_of(10), max_tokens=200)
    for _ in range(5):
        rig.step()
    for choice in range(3):
        rig.submit(f"high {choice}", prompt_of(9), max_tokens=5, priority=1)
    rig.finish()
    assert rig.ended == ["high 0", "high 1", "high 2", "low 0", "low 1"]
    assert rig.scheduler.ledger().preemptions == 2


def test_o10_equals_never_take_slots_from_one_another(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=200, max_running=2)
    for name in ("old 0", "old 1", "new 0", "new 1", "new 2"):
        rig.submit(name, prompt_of(10), max_tokens=50)
        rig.step()
    rig.finish()
    assert rig.scheduler.ledger().preemptions == 0


def test_high_priority_takes_the_blocks_of_low(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=16, max_running=8)
    for index in range(3):
        rig.submit(f"low {index}", prompt_of(16, index), max_tokens=30)
    for _ in range(6):
        rig.step()
    rig.submit("high", prompt_of(40), max_tokens=20, priority=5)
    rig.finish()
    assert rig.ended[0] == "high"
    assert rig.scheduler.ledger().preemptions > 0


@pytest.mark.parametrize("seed", range(3))
def test_o12_o13_waves_with_random_cancels(seed: int, make_rig: Make, prompt_of: Make) -> None:
    rng = random.Random(seed)
    rig = make_rig(num_blocks=32, max_running=12, max_step_tokens=48, ranks=2)
    for wave in range(4):
        for index in range(12):
            prompt = rng.choices(range(97), k=rng.randint(20, 50))
            rig.submit(f"{wave} {index}", prompt, rng.randint(1, 40), rng.choice((0, 0, 1)))
        for _ in range(rng.randint(5, 60)):
            if rig.in_flight and rng.random() < 0.8:
                rig.commit()
            if rig.unacknowledged and rng.random() < 0.5:
                rig.acknowledge(rng.choice(rig.unacknowledged))
            if not rig.in_flight:
                rig.plan()
            if rig.live() and rng.random() < 0.1:
                rig.abort(rng.choice(rig.live()))
            rig.scheduler.check()
    rig.finish()
    rig.submit("last", prompt_of(5), max_tokens=3)
    assert rig.step(), "a small request is served at once"
    rig.finish()


@pytest.mark.parametrize("moment", range(12))
def test_o15_cancelled_around_the_last_prefill_chunk(
    moment: int, make_rig: Make, prompt_of: Make
) -> None:
    # Chunks of 8: the eighth step finishes the prompt. After an abort the rig takes no news of it.
    rig = make_rig(num_blocks=40, max_running=4, max_step_tokens=9)
    rig.submit("r", prompt_of(64), max_tokens=9)
    rig.submit("other", prompt_of(8, 1), max_tokens=9)
    for _ in range(moment):
        rig.step()
    rig.plan()
    rig.abort("r")
    rig.check()
    rig.commit()
    assert rig.reasons["r"] is FinishReason.ABORT
    rig.finish()
    assert rig.ended == ["other"]
