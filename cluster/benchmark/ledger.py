"""What the live books cost a step: counting them, and keeping the contiguous shadow beside.

Drives a real scheduler beside workers that compute nothing, and times what an engine does for the
books alone: what a step waits for, and what is done while workers compute. Memory is as tight as
in a busy server, so that in the shadow most requests queue. Times are of this thread on its core,
so that what else the machine does is left out. Units: milliseconds, requests, tokens, blocks.
"""

from dataclasses import dataclass
from statistics import mean
from time import thread_time

from blockyard.cluster.books.shadow_feed import ShadowFeed
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import StepResult
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler

__all__ = ["LedgerBench", "measure_ledger"]

_RUNNING = 256
_LIMIT = 2048
_PROMPT = 128
_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class LedgerBench:
    """The figures.

    Attributes:
        running: requests that decode at once.
        step_ms: by requests that come, and end, in each step: mean and 99th percentile of what
            ledger and shadow add to it.
        meanwhile_ms: the same of what the shadow takes while workers compute.
    """

    running: int
    step_ms: dict[str, dict[str, float]]
    meanwhile_ms: dict[str, dict[str, float]]


def measure_ledger(steps: int = 4000) -> LedgerBench:
    """Measure everything; takes some twenty seconds."""
    step, meanwhile = {}, {}
    for arrivals in (0, 2):
        samples = _sample(arrivals, steps)
        step[str(arrivals)], meanwhile[str(arrivals)] = map(_figures, samples)
    return LedgerBench(_RUNNING, step, meanwhile)


def _figures(samples: list[float]) -> dict[str, float]:
    ordered = sorted(samples)
    return {
        "mean": round(mean(ordered), 4),
        "p99": round(ordered[int(0.99 * len(ordered))], 4),
    }


def _sample(arrivals: int, steps: int) -> tuple[list[float], list[float]]:
    """Milliseconds of steps in which so many come for as many that end, and meanwhile."""
    # Who comes in place of whom that ends: each lives for as many steps as keep their number.
    at_once = arrivals or 4
    life = _RUNNING // arrivals if arrivals else _RUNNING // at_once + steps
    warm_up = 2 * life if arrivals else _RUNNING // at_once
    longest = _PROMPT + life
    config = SchedulerConfig(
        max_context_tokens=max(_LIMIT, longest),
        block_size=_BLOCK_SIZE,
        max_running=_RUNNING,
        max_step_tokens=_RUNNING + 2048,
    )
    num_blocks = _RUNNING * -(-longest // _BLOCK_SIZE)
    scheduler = Scheduler(config, num_blocks)
    feed = ShadowFeed(num_blocks * _BLOCK_SIZE, config.max_context_tokens, thread_time)
    number = 0
    on_the_way: list[float] = []
    meanwhile: list[float] = []
    for step in range(warm_up + steps):
        count = min(at_once, _RUNNING - scheduler.num_requests)
        coming = [_spec(number + index, life) for index in range(count)]
        number += count
        updates = _advance(scheduler, coming)
        began = thread_time()
        for spec in coming:
            feed.submitted(spec)
        feed.stepped(updates)
        scheduler.ledger()
        noted = thread_time()
        feed.catch_up()
        if step >= warm_up:
            on_the_way.append((noted - began) * 1e3)
            meanwhile.append((thread_time() - noted) * 1e3)
    if not feed.reports():
        raise RuntimeError("the shadow has failed; nothing was measured")
    return on_the_way, meanwhile


def _advance(scheduler: Scheduler, coming: list[RequestSpec]) -> list[RequestUpdate]:
    for spec in coming:
        scheduler.submit(spec, 0.0)
    plan = scheduler.plan(0.0)
    if plan is None:
        raise RuntimeError("the scheduler planned nothing although requests run")
    updates = scheduler.commit(StepResult(plan.step, (1,) * plan.num_samples), 0.0)
    scheduler.acknowledge(plan.step)
    return updates


def _spec(number: int, life: int) -> RequestSpec:
    sampling = SamplingParams(max_tokens=life)
    return RequestSpec(str(number), (number + 2,) * _PROMPT, sampling, use_prefix_cache=False)
