"""Swap or recompute, chosen by cost, against either of them alone, in simulated time.

The device is an older card beside an H200: a tenth of its arithmetic, so that recomputing weighs
something. Requests all come at once and grow in step, which makes for many preemptions.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle

import pytest

from blockyard.scheduler.config import PreemptionPolicy, SchedulerConfig
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.ledger import PreemptionCounts
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.simulated.roofline import H200, LLAMA_8B
from blockyard.scheduler.simulated.simulation import (
    Outcome,
    RequestShape,
    SimulatedDevice,
    run_closed_loop,
)

BLOCK_SIZE = 16
CARD = replace(H200, operations_per_second=100e12)
SHORT, LONG = RequestShape(60, 400), RequestShape(1500, 1500)
CLOSE = 0.97


def run(
    policy: PreemptionPolicy,
    link_bytes_per_second: float,
    requests: Iterator[RequestShape],
    num_blocks: int,
    num_host_blocks: int = 6000,
    measured: int = 120,
) -> tuple[Outcome, PreemptionCounts]:
    """Twice the pool's demand; what is asked for is the same whatever the policy."""
    config = SchedulerConfig(
        max_context_tokens=8192,
        block_size=BLOCK_SIZE,
        max_step_tokens=1024,
        max_waiting=10_000,
        preemption=policy,
    )
    # The figures at load are off by half, as a measurement on an idle machine may be.
    block_bytes = BLOCK_SIZE * LLAMA_8B.kv_bytes_per_token
    rates = RateMeter(block_bytes, 2_000.0, link_bytes_per_second * 1.5)
    scheduler = Scheduler(config, num_blocks, num_host_blocks, rates)
    card = replace(CARD, link_bytes_per_second=link_bytes_per_second)
    device = SimulatedDevice(LLAMA_8B, card, BLOCK_SIZE)
    demand = 2 * num_blocks * BLOCK_SIZE
    outcome = run_closed_loop(scheduler, device, requests, demand, measured // 4, measured)
    scheduler.check()
    assert outcome.zero_progress_steps == 0
    assert outcome.preemptions > 10
    return outcome, scheduler.ledger().preempted


def goodputs(
    link_bytes_per_second: float, shapes: tuple[RequestShape, ...], num_blocks: int, measured: int
) -> dict[PreemptionPolicy, float]:
    """Useful tokens a second under each policy."""
    return {
        policy: run(policy, link_bytes_per_second, cycle(shapes), num_blocks, measured=measured)[
            0
        ].useful_tokens_per_second
        for policy in PreemptionPolicy
    }


@pytest.mark.parametrize(
    ("link_bytes_per_second", "shapes", "num_blocks", "measured", "better"),
    [
        (0.1e9, (SHORT,), 600, 200, PreemptionPolicy.RECOMPUTE),
        (200e9, (RequestShape(2000, 1500),), 3000, 60, PreemptionPolicy.SWAP),
    ],
    ids=["short contexts on a slow link", "long contexts on a fast link"],
)
def test_where_one_way_is_right_auto_takes_it(
    link_bytes_per_second: float,
    shapes: tuple[RequestShape, ...],
    num_blocks: int,
    measured: int,
    better: PreemptionPolicy,
) -> None:
    reached = goodputs(link_bytes_per_second, shapes, num_blocks, measured)
    auto = reached.pop(PreemptionPolicy.AUTO)
    assert max(reached, key=lambda policy: reached[policy]) is better
    assert auto > CLOSE * max(reached.values())
    assert auto > 1.02 * min(reached.values()), "the two ways must differ, or this shows nothing"


def test_on_a_mixed_load_auto_beats_both() -> None:
    reached = goodputs(1e9, (SHORT, LONG), 1500, 150)
    auto = reached.pop(PreemptionPolicy.AUTO)
    assert auto > 1.02 * max(reached.values())


def test_on_a_mixed_load_auto_goes_both_ways() -> None:
    outcome, counts = run(PreemptionPolicy.AUTO, 1e9, cycle((SHORT, LONG)), 1500)
    assert counts.swapped > 5 and counts.recomputed > 5
    assert outcome.swapped_out_blocks > 100
    assert counts.swap_seconds > 0 and counts.swap_estimated_seconds > 0


def test_with_a_full_host_pool_swap_falls_back_to_recompute() -> None:
    outcome, counts = run(PreemptionPolicy.SWAP, 200e9, cycle((SHORT, LONG)), 1500, 100)
    assert counts.recomputed > 0
    assert outcome.recomputed_tokens > 0
