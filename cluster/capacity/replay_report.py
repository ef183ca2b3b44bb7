"""Answers a replay question: the object that `blockyard replay --json` prints.

Turns a trace, a model and a device into groups, and runs them once for each allocator. Knows no
command line. Units: bytes, tokens, blocks, simulated seconds; `wall_s` is real time.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blockyard.cluster.capacity.traffic import Traffic
from blockyard.scheduler.capacity.kv_budget import KvBudget
from blockyard.scheduler.config import PreemptionPolicy
from blockyard.scheduler.replay import Feed
from blockyard.scheduler.scaling import ScalingPolicy
from blockyard.scheduler.simulated.arrivals import Arrival, speed_up
from blockyard.scheduler.simulated.devices import Device
from blockyard.scheduler.simulated.measured_cost import MeasuredCost
from blockyard.scheduler.simulated.memory_timeline import SlotState
from blockyard.scheduler.simulated.setup import ReplaySetup, replay_allocator
from blockyard.scheduler.simulated.step_cost import StepCost, make_step_cost

__all__ = ["ReplayAnswer", "ReplayQuestion", "answer_replay", "default_limit"]

_SATURATED_STEP_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class ReplayQuestion:
    """What is to be replayed, on what.

    Attributes:
        traffic: the requests.
        budget: the model, its split over ranks, and the memory for KV; its limit is what
            `max_seq_len` reserves.
        device: of each rank.
        num_groups: copies of the model, or the most of them.
        allocators: as `replay_setup` names them.
        feed: when requests come.
        speed: how many times as fast as recorded.
        max_running, max_step_tokens: limits of a step; the first is lifted when saturated.
        preemption: what becomes of preempted requests' blocks.
        host_bytes: host memory of a group for swapped blocks.
        unbounded: the pool holds the whole trace at once.
        scaling: how many groups are up at a time; None: all.
        start_seconds: until a group that is wanted takes requests.
    """

    traffic: Traffic
    budget: KvBudget
    device: Device
    num_groups: int
    allocators: Sequence[str]
    feed: Feed
    speed: float
    max_running: int
    max_step_tokens: int
    preemption: PreemptionPolicy
    host_bytes: int
    unbounded: bool = False
    scaling: ScalingPolicy | None = None
    start_seconds: float = 15.0


@dataclass(frozen=True, slots=True)
class ReplayAnswer:
    """The object to print, and memory over time by allocator: (seconds, slots)."""

    report: dict[str, Any]
    memory: dict[str, list[tuple[float, SlotState]]]


def default_limit(traffic: Traffic) -> int:
    """The context that a server for this traffic would be given: the next power of two."""
    return 1 << (traffic.longest_tokens - 1).bit_length()


def answer_replay(
    question: ReplayQuestion, progress: Callable[[str, int], None] = lambda name, done: None
) -> ReplayAnswer:
    """Run the replay; `progress` is told the allocator and how many requests have come."""
    began = time.perf_counter()
    setup = _setup(question)
    figures: dict[str, Any] = {}
    memory: dict[str, list[tuple[float, SlotState]]] = {}
    for name in question.allocators:
        outcome = replay_allocator(name, setup, _arrivals(question, name, progress), question.feed)
        figures[name] = outcome.figures
        memory[name] = outcome.memory
    report = {
        "allocators": figures,
        "requests": question.traffic.num_requests,
        "simulated_s": max(entry["simulated_s"] for entry in figures.values()),
        "wall_s": time.perf_counter() - began,
        "setup": {
            "device": question.device.name,
            "groups": setup.num_groups,
            "min_groups": question.scaling.min_groups if question.scaling else setup.num_groups,
            "tp": question.budget.num_ranks,
            "blocks_per_group": setup.num_blocks,
            "host_blocks_per_group": setup.num_host_blocks,
            "block_size": setup.block_size,
            "slots": setup.num_groups * setup.num_blocks * setup.block_size,
            "kv_bytes_per_token": question.budget.shape.kv_bytes_per_token(
                question.budget.kv_dtype
            ),
            "max_seq_len": setup.limit,
            "max_running": setup.max_running,
            "max_step_tokens": setup.max_step_tokens,
            "preemption": setup.preemption.value,
            "feed": question.feed.value,
            "speed": question.speed,
        },
    }
    return ReplayAnswer(report, memory)


def _setup(question: ReplayQuestion) -> ReplaySetup:
    budget = question.budget
    size = budget.block_size
    block_bytes = budget.rank_kv_bytes_per_token * size
    if question.unbounded:
        blocks = question.traffic.num_blocks(size)
    else:
        blocks = budget.rank_kv_memory_bytes() // block_bytes
    step_tokens, running = question.max_step_tokens, question.max_running
    if question.feed is Feed.SATURATE:
        # A scheduler keeps a token of each step for prefill, so some number must be given. It is
        # far above what memory lets run; `peak_running` in the report shows that it bound nobody.
        step_tokens = max(step_tokens, _SATURATED_STEP_TOKENS)
        running = step_tokens - 1
    return ReplaySetup(
        cost=_cost(question),
        num_groups=question.num_groups,
        num_blocks=max(1, blocks),
        block_size=size,
        limit=budget.limit,
        max_running=running,
        max_step_tokens=step_tokens,
        preemption=question.preemption,
        num_host_blocks=question.host_bytes // (block_bytes * budget.num_ranks),
        scaling=question.scaling,
        start_seconds=question.start_seconds,
    )


def _cost(question: ReplayQuestion) -> StepCost:
    budget, speed = question.budget, question.device.speed
    if not isinstance(speed, MeasuredCost):
        return make_step_cost(
            budget.shape, speed, budget.block_size, budget.num_ranks, budget.kv_dtype
        )
    block_bytes = budget.rank_kv_bytes_per_token * budget.block_size
    if speed.block_bytes != block_bytes:
        raise ValueError(
            f"{question.device.name} was measured with blocks of {speed.block_bytes:,} B, here "
            f"they have {block_bytes:,} B: give the model, --kv, --tp and --block-size it was "
            "measured with, or run blockyard calibrate with these"
        )
    return speed


def _arrivals(
    question: ReplayQuestion, name: str, progress: Callable[[str, int], None]
) -> Iterator[Arrival]:
    number = 0
    for arrival in speed_up(question.traffic.arrivals(), question.speed):
        progress(name, number)
        number += 1
        yield arrival
    progress(name, number)
