"""Measures what steps cost on this machine with one model, so that replays can price them.

Runs an executor without server or wires: the real scheduler makes the plans, so the steps are
those of a server. Knows nothing of files. Units: tokens, blocks, seconds.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median

from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.request import RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.simulated.devices import Device
from blockyard.scheduler.simulated.measured_cost import StepSample, fit_cost
from blockyard.workers.config import Executor, WorkerProfile

__all__ = ["CALIBRATION_BLOCKS", "calibrate_device"]

CALIBRATION_BLOCKS = 1024
"""Blocks that the measured loads need at most, of 16 tokens."""

_UNKNOWN_LINK = 10e9
"""Bytes a second, where no host memory was measured: nothing is swapped there."""

_DECODES = 5

_MOST_PREFILL = 1024
"""Prompt tokens of one load: enough to fill a step, and soon done on a CPU."""


@dataclass(frozen=True, slots=True)
class _Load:
    """Requests that come at once: how many, and how long their prompts are."""

    requests: int
    prompt_tokens: int


def calibrate_device(
    name: str,
    executor: Executor,
    profile: WorkerProfile,
    config: SchedulerConfig,
    num_blocks: int,
    memory_bytes: int,
    progress: Callable[[str], None] = lambda what: None,
) -> Device:
    """Run a few hundred steps of different sizes and fit what they cost.

    Args:
        name: of the device in the result.
        executor: loaded, with a pool of `num_blocks` blocks.
        profile: what it told when it was loaded.
        config: limits of the server that replays will stand for.
        num_blocks: blocks of its pool.
        memory_bytes: of the device.
        progress: told what is being measured.
    """
    bench = _Bench(executor, config, num_blocks)
    bench.run(_Load(1, 8))  # the first steps pay for what is made once
    samples: list[StepSample] = []
    for load in _loads(config, num_blocks):
        progress(f"{load.requests} requests with {load.prompt_tokens} tokens")
        samples += bench.run(load)
    link = profile.link_bytes_per_second or _UNKNOWN_LINK
    return Device(name, memory_bytes, fit_cost(samples, profile.block_bytes, link))


def _loads(config: SchedulerConfig, num_blocks: int) -> Iterator[_Load]:
    """From one short request to as many and as long ones as limits and blocks allow."""
    for requests in (1, 2, 4, 8, 16, 32, 64):
        for prompt in (16, 128, 512):
            blocks = requests * (-(-(prompt + _DECODES) // config.block_size) + 1)
            if (
                requests <= config.max_running
                and prompt + _DECODES < config.max_context_tokens
                and blocks <= num_blocks
                and requests * prompt <= _MOST_PREFILL
            ):
                yield _Load(requests, prompt)


class _Bench:
    """One scheduler and one executor, stepping."""

    def __init__(self, executor: Executor, config: SchedulerConfig, num_blocks: int) -> None:
        self._executor = executor
        self._scheduler = Scheduler(config, num_blocks)
        self._number = 0

    def run(self, load: _Load) -> list[StepSample]:
        """Serve a load to its end.

        Steps that only decode differ little, so they give one sample with the median of their
        times: a hiccup of the machine is no cost of theirs.
        """
        for _ in range(load.requests):
            self._number += 1
            # Small ids, which every vocabulary has.
            prompt = tuple(
                (self._number * 131 + index * 7) % 997 for index in range(load.prompt_tokens)
            )
            sampling = SamplingParams(max_tokens=_DECODES + 1, temperature=1.0, seed=self._number)
            self._scheduler.submit(
                RequestSpec(f"c{self._number}", prompt, sampling, use_prefix_cache=False),
                time.perf_counter(),
            )
        samples: list[StepSample] = []
        decodes: list[StepSample] = []
        began = time.perf_counter()
        while (plan := self._scheduler.plan(began)) is not None:
            result = self._executor.execute(plan)
            self._scheduler.commit(result, began)
            self._scheduler.acknowledge(plan.step)
            ended = time.perf_counter()
            sample = StepSample.of(plan.starts, plan.counts, ended - began)
            (decodes if sample.tokens == sample.rows else samples).append(sample)
            began = ended
        if decodes:
            middle = decodes[len(decodes) // 2]
            seconds = median(sample.seconds for sample in decodes)
            samples.append(replace(middle, seconds=seconds))
        return samples
