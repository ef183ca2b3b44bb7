"""How fast the scheduler is on this machine, beside workers that compute nothing.

Times what stands between two steps of a group: plan, commit and acknowledge, and submit where
requests come. Times are of this thread on its core, so that what else the machine does is left
out. Ratios are medians over rounds in which both sides take turns, so that a machine that gets
slower meanwhile slows both. Units: milliseconds, tokens, blocks.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, median
from time import thread_time

from blockyard.scheduler.block_keys import NO_EXTRAS, block_keys
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler

__all__ = ["ASSUMED_STEP_SECONDS", "SchedulerBench", "measure_scheduler"]

ASSUMED_STEP_SECONDS = 0.011
"""Length of a step, which makes 64 arrivals a second so many a step: an H200's by its roofline, for
8e9 parameters and 256 requests of the lengths used here. Each then lives for four seconds, in which
it takes 31 blocks. On a device whose steps are twice as long twice as many come and go in each, and
the scheduler has twice as long for it: the ratio to a step without grows, its share of time does
not."""

_ARRIVALS_PER_SECOND = 64
_CHURN_PROMPT = 128
_LONG_PROMPT = 32_768
_BLOCK_SIZE = 16
_ENDLESS = 1_000_000


@dataclass(frozen=True, slots=True)
class SchedulerBench:
    """The figures.

    Attributes:
        plan_commit_ms: by number of running requests in steady decode: mean and 99th percentile.
        churn_ratio: a step at 256 running with 64 arrivals and 64 endings a second, to one without.
            Steps are taken to last `ASSUMED_STEP_SECONDS`, so 0.7 come and go in each; to take them
            in counts, too, though a group does that while its workers compute.
        pool_size_ratio: a step over 100,000 blocks to one over 1,000, both pools full of blocks
            that were used and are kept.
        prefix_match_32k_ms: from the submission of a prompt of 32,768 tokens, all of it in the
            index, to the plan of its first step; keys come with it, as from an ingress.
    """

    plan_commit_ms: dict[str, dict[str, float]]
    churn_ratio: float
    pool_size_ratio: float
    prefix_match_32k_ms: float


def measure_scheduler(
    steps: int = 400, rounds: int = 9, progress: Callable[[str], None] = lambda _: None
) -> SchedulerBench:
    """Measure everything; takes some ten seconds."""
    plan_commit = {}
    for running in (256, 1024):
        progress(f"steady decode of {running:,} requests")
        samples = _steady(running).sample(steps)
        plan_commit[str(running)] = {
            "mean": round(mean(samples), 4),
            "p99": round(_percentile(samples, 0.99), 4),
        }
    progress("requests that come and go")
    churn = _ratio(_churning(256), _steady(256), rounds, steps // 4)
    progress("a pool of 100,000 blocks")
    pool_size = _ratio(_short_answers(100_000), _short_answers(1_000), rounds, steps // 4)
    progress("a prompt of 32,768 tokens")
    return SchedulerBench(plan_commit, round(churn, 3), round(pool_size, 3), round(_match(), 3))


class _Loop:
    """One scheduler that steps with workers that compute nothing."""

    def __init__(
        self,
        config: SchedulerConfig,
        num_blocks: int,
        arrivals: Callable[[int], RequestSpec] | None = None,
    ) -> None:
        self.scheduler = Scheduler(config, num_blocks)
        self._arrivals = arrivals
        self._target = config.max_running
        self._number = 0

    def submit(self, make: Callable[[int], RequestSpec], count: int) -> None:
        for _ in range(count):
            self.scheduler.submit(make(self._number), 0.0)
            self._number += 1

    def step(self) -> float:
        """One step; returns the milliseconds it took the scheduler."""
        arriving: list[RequestSpec] = []
        if self._arrivals is not None:
            missing = self._target - self.scheduler.num_requests
            arriving = [self._arrivals(self._number + index) for index in range(missing)]
            self._number += missing
        began = thread_time()
        for spec in arriving:
            self.scheduler.submit(spec, 0.0)
        plan = self.scheduler.plan(0.0)
        planned = thread_time()
        if plan is None:
            raise RuntimeError("the scheduler planned nothing although requests run")
        result = _no_work(plan)
        executed = thread_time()
        self.scheduler.commit(result, 0.0)
        self.scheduler.acknowledge(plan.step)
        return (planned - began + thread_time() - executed) * 1e3

    def sample(self, steps: int) -> list[float]:
        return [self.step() for _ in range(steps)]


def _no_work(plan: StepPlan) -> StepResult:
    """What workers would answer had they computed: a token for each sample, all alike."""
    return StepResult(plan.step, (1,) * plan.num_samples)


def _steady(running: int) -> _Loop:
    """Requests that decode and never end. Prompts differ in length, so blocks fill up in turn."""
    config = SchedulerConfig(
        max_context_tokens=2 * _ENDLESS,
        max_running=running,
        max_step_tokens=running + 2048,
        max_waiting=running,
    )
    loop = _Loop(config, 100_000)
    loop.submit(lambda number: _spec(number, 32 + number % _BLOCK_SIZE), running)
    while loop.scheduler.ledger().requests.waiting:
        loop.step()
    loop.sample(2 * _BLOCK_SIZE)
    return loop


def _churning(running: int) -> _Loop:
    """The same, but each request ends after as many steps as make 64 endings a second."""
    life = round(running / (_ARRIVALS_PER_SECOND * ASSUMED_STEP_SECONDS))
    config = SchedulerConfig(
        max_context_tokens=2 * _ENDLESS,
        max_running=running,
        max_step_tokens=running + 2048,
        max_waiting=running,
    )
    loop = _Loop(config, 100_000, lambda number: _spec(number, _CHURN_PROMPT, life))
    ages = random.Random(7)
    loop.submit(lambda number: _spec(number, _CHURN_PROMPT, ages.randint(1, life)), running)
    loop.sample(2 * life)
    return loop


def _short_answers(num_blocks: int) -> _Loop:
    """A pool full of used blocks, and 256 requests that take three blocks each and end soon."""
    running = 256
    config = SchedulerConfig(
        max_context_tokens=2 * _ENDLESS,
        max_running=running,
        max_step_tokens=8192,
        max_waiting=running,
    )
    loop = _Loop(config, num_blocks)
    length = min(8_000, num_blocks * _BLOCK_SIZE // 2)
    for _ in range(2 * num_blocks * _BLOCK_SIZE // length):
        loop.submit(lambda number: _spec(number, length, 1), 1)
        while loop.scheduler.has_work:
            loop.step()
    full = _Loop(config, num_blocks, lambda number: _spec(number, 8, 32))
    full.scheduler, full._number = loop.scheduler, loop._number
    full.sample(100)
    return full


def _match() -> float:
    """Milliseconds from the submission of a long prompt that is in the index to its first plan."""
    config = SchedulerConfig(
        max_context_tokens=2 * _LONG_PROMPT, max_running=8, max_step_tokens=8192
    )
    loop = _Loop(config, 3 * _LONG_PROMPT // _BLOCK_SIZE)
    draw = random.Random(3)
    prompt = tuple(draw.randrange(50_000) for _ in range(_LONG_PROMPT))
    keys = block_keys(prompt, _BLOCK_SIZE, NO_EXTRAS)

    def make(number: int) -> RequestSpec:
        sampling = SamplingParams(max_tokens=1)
        return RequestSpec(str(number), prompt, sampling, block_keys=keys)

    loop.submit(make, 1)
    while loop.scheduler.has_work:
        loop.step()
    samples = []
    for _ in range(31):
        began = thread_time()
        loop.submit(make, 1)
        plan = loop.scheduler.plan(0.0)
        samples.append((thread_time() - began) * 1e3)
        if plan is None or len(plan.token_ids) != _BLOCK_SIZE:
            raise RuntimeError("the prompt was not found whole in the prefix index")
        loop.scheduler.commit(_no_work(plan), 0.0)
        loop.scheduler.acknowledge(plan.step)
    return median(samples)


def _ratio(one: _Loop, other: _Loop, rounds: int, steps: int) -> float:
    """Median time of a step of `one` to that of `other`, taking turns."""
    samples: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        samples[0].append(mean(one.sample(steps)))
        samples[1].append(mean(other.sample(steps)))
    return median(samples[0]) / median(samples[1])


def _spec(number: int, prompt_tokens: int, max_tokens: int = _ENDLESS) -> RequestSpec:
    """A request whose first block is nobody else's, with its keys, as an ingress sends it."""
    prompt = (number + 2,) * prompt_tokens
    keys = block_keys(prompt, _BLOCK_SIZE, NO_EXTRAS)
    return RequestSpec(str(number), prompt, SamplingParams(max_tokens=max_tokens), block_keys=keys)


def _percentile(samples: list[float], share: float) -> float:
    return sorted(samples)[min(len(samples) - 1, int(share * len(samples)))]
