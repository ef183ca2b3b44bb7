"""Replays in which the number of groups follows the load."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from blockyard.scheduler.capacity.kv_math import ModelShape
from blockyard.scheduler.replay import Feed
from blockyard.scheduler.scaling import ScalingPolicy
from blockyard.scheduler.simulated.arrivals import Arrival
from blockyard.scheduler.simulated.roofline import H200
from blockyard.scheduler.simulated.setup import ReplaySetup, replay_allocator
from blockyard.scheduler.simulated.step_cost import make_step_cost

COST = make_step_cost(ModelShape(32, 8, 128, 8_000_000_000), H200, 16, 1)


def setup(policy: ScalingPolicy | None, **options: Any) -> ReplaySetup:
    defaults: dict[str, Any] = {"num_blocks": 600, "limit": 2048, "max_running": 32}
    return ReplaySetup(
        cost=COST,
        num_groups=4,
        block_size=16,
        max_step_tokens=512,
        scaling=policy,
        **{**defaults, **options},
    )


def wave(seed: int = 5) -> Iterator[Arrival]:
    """A minute of little, two minutes of much, and five of little again."""
    rng = random.Random(seed)
    now, number = 0.0, 0
    while now < 480.0:
        now += rng.expovariate(12.0 if 60 < now < 180 else 0.5)
        yield Arrival(number, now, rng.randrange(100, 900), rng.randrange(20, 200))
        number += 1


POLICY = ScalingPolicy(1, 4, quiet_seconds=60.0, ahead_seconds=15.0)


@pytest.mark.parametrize("allocator", ["blocks", "contiguous:max_seq_len"])
def test_groups_follow_the_load_and_nobody_is_lost(allocator: str) -> None:
    figures = replay_allocator(allocator, setup(POLICY), wave()).figures
    scaling = figures["scaling"]
    assert figures["finished"] == sum(1 for _ in wave())
    # Blocks hold in three groups what reservations fill four with.
    assert scaling["peak_groups"] == (3 if allocator == "blocks" else 4)
    assert 1.2 < scaling["mean_groups"] < 3.0
    assert sum(figures["slots_ratio"].values()) == pytest.approx(1.0)
    alone = replay_allocator(allocator, setup(ScalingPolicy(1, 1)), wave()).figures
    assert alone["scaling"]["peak_groups"] == alone["scaling"]["mean_groups"] == 1
    # One group has blocks for nearly all of it; with reservations it lets most of them wait.
    times = 1 if allocator == "blocks" else 3
    assert figures["ttft_s"]["p90"] < alone["ttft_s"]["p90"] / times


def test_scaling_and_running_ahead_leave_the_same_books() -> None:
    ahead, single = (
        replay_allocator("blocks", setup(POLICY), wave(), run_ahead=run_ahead).figures
        for run_ahead in (True, False)
    )
    assert ahead["scaling"] == pytest.approx(single["scaling"])
    assert ahead["steps"] == single["steps"]
    assert ahead["ttft_s"] == pytest.approx(single["ttft_s"])
    assert ahead["filled_ratio"] == pytest.approx(single["filled_ratio"])


def test_the_first_request_wakes_a_cluster_that_went_to_none() -> None:
    policy = ScalingPolicy(0, 2, quiet_seconds=10.0, idle_seconds=20.0)
    arrivals = [Arrival(n, at, 400, 10) for n, at in enumerate((5.5, 5.6, 100.25))]
    figures = replay_allocator("blocks", setup(policy, start_seconds=8.0), arrivals).figures
    assert figures["finished"] == 3
    # Noticed at the next look, half a second later at most, and then the start.
    assert figures["ttft_s"]["p50"] == pytest.approx(8.5, abs=0.1)
    assert figures["ttft_s"]["p99"] == pytest.approx(8.8, abs=0.1)
    scaling = figures["scaling"]
    assert scaling["peak_groups"] == 1
    # Up, down after 20 idle seconds of which the need of before has passed for 10, and up again.
    assert scaling["changes"] == 3
    assert scaling["group_seconds"] == pytest.approx(30.0, abs=2.0)


def test_without_recorded_times_there_is_nothing_to_scale_by() -> None:
    with pytest.raises(ValueError, match="recorded times"):
        replay_allocator("blocks", setup(POLICY), [], Feed.SATURATE)
