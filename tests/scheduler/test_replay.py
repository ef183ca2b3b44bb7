"""Replays on simulated groups: run ahead against step by step, and what the figures mean."""

import gc
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from blockyard.scheduler.capacity.kv_math import ModelShape
from blockyard.scheduler.config import PreemptionPolicy
from blockyard.scheduler.replay import BACKLOG, Feed
from blockyard.scheduler.simulated.arrivals import Arrival
from blockyard.scheduler.simulated.roofline import H200
from blockyard.scheduler.simulated.setup import (
    ALLOCATORS,
    AllocatorOutcome,
    ReplaySetup,
    replay_allocator,
)
from blockyard.scheduler.simulated.step_cost import make_step_cost

SHAPE = ModelShape(32, 8, 128, 8_000_000_000)


def setup(num_blocks: int, **options: Any) -> ReplaySetup:
    defaults: dict[str, Any] = {
        "num_groups": 1,
        "block_size": 16,
        "limit": 4096,
        "max_running": 64,
        "max_step_tokens": 512,
    }
    cost = make_step_cost(SHAPE, H200, 16, 1)
    return ReplaySetup(cost=cost, num_blocks=num_blocks, **{**defaults, **options})


def traffic(
    count: int, per_second: float, seed: int = 3, prompt: int = 3000, output: int = 400
) -> Iterator[Arrival]:
    """Requests of which some begin alike."""
    rng = random.Random(seed)
    now = 0.0
    for number in range(count):
        now += rng.expovariate(per_second)
        first = 100 * rng.randrange(6)
        prefix = tuple(range(first, first + rng.randrange(6)))
        yield Arrival(number, now, rng.randrange(1, prompt), rng.randrange(1, output), prefix)


def flat(value: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{name}.{part}" if part else name: number
        for name, entry in value.items()
        for part, number in (entry.items() if isinstance(entry, dict) else [("", entry)])
        if number is not None
    }


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize(
    ("feed", "options"),
    [
        (Feed.RECORDED, {"num_groups": 2}),
        (Feed.RECORDED, {"num_host_blocks": 200, "preemption": PreemptionPolicy.SWAP}),
        (Feed.SINGLE, {}),
    ],
)
def test_running_ahead_keeps_the_books_of_single_steps(
    allocator: str, feed: Feed, options: dict[str, Any]
) -> None:
    outcomes = [
        replay_allocator(
            allocator, setup(600, **options), traffic(120, 4.0), feed, run_ahead=run_ahead
        )
        for run_ahead in (True, False)
    ]
    ahead, single = (flat(outcome.figures) for outcome in outcomes)
    assert ahead == pytest.approx(single, rel=1e-9)
    # What counts things must not differ even in the last digit.
    for name in ("finished", "steps", "preemptions", "peak_running", "peak_held_slots"):
        assert ahead[name] == single[name]
    # Over time, steps done at once are drawn as one level: at most a block for each who runs.
    blur = 16 * single["peak_running"]
    for left, right in zip(outcomes[0].memory, outcomes[1].memory, strict=True):
        assert tuple(left[1]) == pytest.approx(tuple(right[1]), abs=blur)


def saturated(allocator: str, count: int = 400, num_groups: int = 1) -> AllocatorOutcome:
    arrivals = traffic(count, 1e9, prompt=1500, output=300)
    own = (arrival._replace(prefix_ids=()) for arrival in arrivals)
    return replay_allocator(
        allocator,
        setup(1500, num_groups=num_groups, max_running=2047, max_step_tokens=2048),
        own,
        Feed.SATURATE,
    )


def test_blocks_hold_tokens_where_contiguous_memory_holds_promises() -> None:
    blocks = saturated("blocks").figures
    reserved = saturated("contiguous:max_seq_len").figures
    assert blocks["filled_ratio"] > 0.96
    assert blocks["pool_filled_ratio"] < blocks["filled_ratio"]
    # 24,000 slots hold five reservations of 4,096.
    assert reserved["peak_running"] == 5
    assert reserved["filled_ratio"] < 0.3
    assert blocks["mean_running"] > 2.5 * reserved["mean_running"]
    assert blocks["finished"] == reserved["finished"] == 400
    assert blocks["refused"] == reserved["refused"] == 0


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_all_memory_is_accounted_for_at_every_moment(allocator: str) -> None:
    outcome = saturated(allocator, 200, num_groups=2)
    assert sum(outcome.figures["slots_ratio"].values()) == pytest.approx(1.0)
    assert outcome.memory
    for _, state in outcome.memory:
        assert sum(state) - state.running == pytest.approx(2 * 1500 * 16)


def test_memory_is_looked_at_only_while_the_queue_is_full() -> None:
    figures = saturated("blocks", 150).figures
    assert 0 < figures["measured_s"] < figures["simulated_s"]
    few = saturated("blocks", BACKLOG // 2).figures
    assert few["finished"] == BACKLOG // 2


@pytest.mark.parametrize("allocator", ["blocks", "contiguous:max_seq_len"])
def test_who_is_over_the_limit_is_refused_by_both(allocator: str) -> None:
    lengths = [(4000, 96), (4000, 97), (5000, 1), (10, 10)]
    arrivals = [Arrival(n, 0.0, *length) for n, length in enumerate(lengths)]
    figures = replay_allocator(allocator, setup(600), arrivals).figures
    assert (figures["finished"], figures["refused"]) == (2, 2)


def test_one_request_takes_the_time_of_its_steps() -> None:
    config = setup(600)
    figures = replay_allocator("blocks", config, [Arrival(0, 7.0, 512, 3)]).figures
    prefill = config.cost.compute_seconds([0], [512])
    decode = [config.cost.decode_seconds(1, 513), config.cost.decode_seconds(1, 514)]
    assert figures["simulated_s"] == pytest.approx(7.0 + prefill + sum(decode))
    assert figures["ttft_s"]["p50"] == pytest.approx(prefill, rel=0.006)
    assert figures["inter_token_s"]["p50"] == pytest.approx(decode[0], rel=0.006)
    assert figures["steps"] == 3
    assert figures["output_tokens_per_s"] == pytest.approx(3 / figures["simulated_s"])


def test_cached_tokens_are_those_that_prefix_ids_tell() -> None:
    # One at a time, in a pool that never forgets: 512 + 512 tokens, then as far as they agree.
    prompts = [(1100, (1, 2, 3)), (1100, (1, 2, 3)), (1500, (1, 2, 9)), (1024, (1, 2)), (40, (5,))]
    arrivals = [Arrival(n, 0.0, length, 20, ids) for n, (length, ids) in enumerate(prompts)]
    figures = replay_allocator("blocks", setup(2000), arrivals, Feed.SINGLE).figures
    # 1,100 tokens are 68 full blocks; of a prompt of 1,024 its last block is computed again.
    assert figures["prefix_hit_tokens"] == 68 * 16 + 1024 + (1024 - 16)
    assert figures["prompt_tokens"] == sum(length for length, _ in prompts)


def test_a_burst_is_spread_over_the_groups() -> None:
    arrivals = [Arrival(n, 0.0, 400, 50) for n in range(8)]
    one = replay_allocator("blocks", setup(600, max_running=1), arrivals).figures
    four = replay_allocator("blocks", setup(600, max_running=1, num_groups=4), arrivals).figures
    assert four["peak_running"] == 4
    assert four["simulated_s"] == pytest.approx(one["simulated_s"] / 4)


def test_who_begins_like_another_goes_where_that_is_known() -> None:
    # Two at once, so each gets a group; who comes first takes turns. Each text stays in its group.
    texts = [text for turn in range(10) for text in ((0, 1) if turn % 2 else (1, 0))]
    arrivals = [Arrival(n, float(n // 2), 600, 10, (text,)) for n, text in enumerate(texts)]
    figures = replay_allocator("blocks", setup(600, num_groups=2), arrivals).figures
    assert figures["prefix_hit_tokens"] == (20 - 2) * 512


def test_an_allocator_must_be_known() -> None:
    with pytest.raises(ValueError, match="contiguous:best"):
        replay_allocator("contiguous:best", setup(10), [])


def kept_bytes(
    count: int, marks: tuple[int, ...], config: ReplaySetup, texts: int = 0
) -> list[int]:
    """All that is remembered when so many of `count` requests have come; some begin alike."""
    sizes = []

    def arrivals() -> Iterator[Arrival]:
        for number in range(count):
            if number in marks:
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
            prefix = (number % texts,) if texts and number % 3 else ()
            length = 40 + number % 50
            yield Arrival(number, number / 10, length, 2 + number % 5, prefix)

    tracemalloc.start()
    try:
        replay_allocator("blocks", config, arrivals())
    finally:
        tracemalloc.stop()
    return sizes


def test_memory_does_not_grow_with_the_requests() -> None:
    """All that is remembered after many requests takes no more than after half as many."""
    # The first mark is late enough for the timeline to have its full size.
    half, whole = kept_bytes(1400, (700, 1399), setup(200, num_groups=4))
    assert whole < 1.05 * half


@pytest.mark.slow
def test_memory_does_not_grow_with_very_many_requests() -> None:
    # The pools are full of kept blocks at the first mark; the timeline is as large at each of them.
    sizes = kept_bytes(12_000, (3_000, 6_000, 11_999), setup(100, num_groups=16), texts=7)
    assert max(sizes) < 1.02 * min(sizes)
