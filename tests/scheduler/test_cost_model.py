import math
import random

import pytest

from blockyard.scheduler.cost_model import CostModel, RateMeter

BLOCK_BYTES = 2_097_152
MODEL = CostModel(
    BLOCK_BYTES,
    prefill_tokens_per_second=20_000.0,
    link_bytes_per_second=BLOCK_BYTES * 1_000.0,
)


def test_a_swap_costs_both_ways_and_a_recompute_its_tokens() -> None:
    assert MODEL.swap_seconds(50) == pytest.approx(0.1)
    assert MODEL.recompute_seconds(800) == pytest.approx(0.04)
    assert MODEL.swap_seconds(0) == MODEL.recompute_seconds(0) == 0.0


def test_the_way_out_hides_behind_a_step_up_to_its_length() -> None:
    covered = CostModel(BLOCK_BYTES, 20_000.0, BLOCK_BYTES * 1_000.0, step_seconds=0.03)
    assert covered.swap_seconds(20) == pytest.approx(0.02)
    assert covered.swap_seconds(50) == pytest.approx(0.02 + 0.05)
    # A second victim finds the cover used up, and both together cost what one of their size does.
    assert covered.swap_seconds(50, blocks_before=20) == pytest.approx(0.04 + 0.05)
    assert covered.swap_seconds(50, blocks_before=500) == pytest.approx(0.1)
    parts = covered.swap_seconds(20) + covered.swap_seconds(50, blocks_before=20)
    assert parts == pytest.approx(covered.swap_seconds(70))


def test_a_rate_that_was_never_measured_prices_its_way_out() -> None:
    nothing = CostModel(BLOCK_BYTES, 0.0, 0.0)
    assert nothing.swap_seconds(1) == nothing.recompute_seconds(1) == math.inf
    assert nothing.swap_seconds(0) == nothing.recompute_seconds(0) == 0.0


def test_rates_start_as_measured_at_load_and_follow_what_runs() -> None:
    meter = RateMeter(BLOCK_BYTES, 20_000.0, 1e9)
    assert meter.model().prefill_tokens_per_second == pytest.approx(20_000)
    assert meter.model().link_bytes_per_second == pytest.approx(1e9)
    for _ in range(400):
        meter.observe_step(512, 0, 512 / 8_000)
        meter.observe_copy(16, 16 * BLOCK_BYTES / 5e9)
    assert meter.model().prefill_tokens_per_second == pytest.approx(8_000, rel=0.02)
    assert meter.model().link_bytes_per_second == pytest.approx(5e9, rel=0.02)


def test_rates_are_learned_from_nothing() -> None:
    meter = RateMeter(BLOCK_BYTES)
    meter.observe_step(512, 0, 0.1)
    meter.observe_copy(4, 0.001)
    assert meter.model().prefill_tokens_per_second == pytest.approx(5_120)
    assert meter.model().link_bytes_per_second == pytest.approx(4_000 * BLOCK_BYTES)


def test_decodes_do_not_count_as_slow_prefill() -> None:
    meter = RateMeter(BLOCK_BYTES, 20_000.0)
    for _ in range(200):
        meter.observe_step(0, 256, 0.015)
        meter.observe_step(4, 255, 0.015)
        meter.observe_step(256, 255, 0.015 + 256 / 20_000)
    assert meter.model().prefill_tokens_per_second == pytest.approx(20_000, rel=0.02)


def test_a_hiccup_moves_little_and_noise_evens_out() -> None:
    meter = RateMeter(BLOCK_BYTES, 20_000.0, 1e9)
    meter.observe_step(512, 0, 60.0)
    meter.observe_copy(512, 60.0)
    assert meter.model().prefill_tokens_per_second > 15_000
    assert meter.model().link_bytes_per_second > 0.35e9
    rng = random.Random(5)
    for _ in range(400):
        meter.observe_step(512, 0, 512 / 20_000 * rng.uniform(0.7, 1.3))
        meter.observe_copy(32, 32 * BLOCK_BYTES / 1e9 * rng.uniform(0.7, 1.3))
    assert meter.model().prefill_tokens_per_second == pytest.approx(20_000, rel=0.06)
    assert meter.model().link_bytes_per_second == pytest.approx(1e9, rel=0.06)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_clock_that_stood_still_teaches_nothing(seconds: float) -> None:
    meter = RateMeter(BLOCK_BYTES, 20_000.0, 1e9)
    before = meter.model()
    meter.observe_step(512, 0, seconds)
    meter.observe_copy(16, seconds)
    meter.observe_step(0, 0, 1.0)
    meter.observe_copy(0, 1.0)
    assert meter.model() == before


def test_the_usual_step_is_learned_for_the_cover_it_gives() -> None:
    meter = RateMeter(BLOCK_BYTES, 20_000.0, BLOCK_BYTES * 1_000.0)
    for _ in range(200):
        meter.observe_step(0, 64, 0.01)
    meter.observe_step(0, 64, 30.0)
    assert meter.model().step_seconds == pytest.approx(0.01, rel=0.1)
    assert meter.model().swap_seconds(5) == pytest.approx(0.005)


def test_a_link_that_was_slow_once_is_tried_again() -> None:
    """Who never swaps never measures; so what is long past gives way to the measurement at load."""
    meter = RateMeter(BLOCK_BYTES, 20_000.0, 10e9)
    for _ in range(100):
        meter.observe_copy(16, 16 * BLOCK_BYTES / 0.5e9)
    assert meter.model().link_bytes_per_second < 0.6e9
    for _ in range(8000):
        meter.observe_step(0, 64, 0.01)
    assert meter.model().link_bytes_per_second > 9e9


def test_a_link_that_was_never_measured_at_load_is_not_forgotten() -> None:
    meter = RateMeter(BLOCK_BYTES)
    meter.observe_copy(16, 16 * BLOCK_BYTES / 0.5e9)
    for _ in range(8000):
        meter.observe_step(0, 64, 0.01)
    assert meter.model().link_bytes_per_second == pytest.approx(0.5e9)
