"""What planning a step while the one before it runs gains, over the wire to a rank's own process.

The real engine and scheduler drive a witness whose steps take as long as is said, as a model's
would. With 0 they take what its few thousand numbers take: little, so that is what the fastest
device gains at most. Both depths take turns, and the ratio is of their medians. Units: tokens,
seconds.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from blockyard.cluster.engine import Engine
from blockyard.cluster.group_ranks import GroupRanks
from blockyard.cluster.rank_process import ProcessRank
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import Executor, WorkerConfig, WorkerKind
from blockyard.workers.description import describe_model
from blockyard.workers.paced_witness import PacedWitness
from blockyard.workers.witness_files import WITNESS_CONTEXT_TOKENS, write_witness_files

__all__ = ["PipelineBench", "measure_pipeline"]

_PROMPT = 32
_NEWCOMER_EVERY_SECONDS = 0.1
_SETTLE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PipelineBench:
    """The figures, by steps in flight: "1" and "2".

    Attributes:
        running: requests that decode all the time.
        step_ms: what a step takes at least.
        tokens_per_second: of all of them together; medians of the rounds.
        gain: tokens a second with two steps in flight, to those with one.
        first_token_ms: what a newcomer with a short prompt waits for its first token; medians.
    """

    running: int
    step_ms: float
    tokens_per_second: dict[str, float]
    gain: float
    first_token_ms: dict[str, float]


def measure_pipeline(
    running: int = 64,
    new_tokens: int = 300,
    rounds: int = 3,
    step_ms: float = 8.0,
    progress: Callable[[str], None] = lambda _: None,
) -> PipelineBench:
    """Measure both depths in turns; takes some twenty seconds."""
    return asyncio.run(_measure(running, new_tokens, rounds, step_ms, progress))


async def _measure(
    running: int, new_tokens: int, rounds: int, step_ms: float, progress: Callable[[str], None]
) -> PipelineBench:
    speeds: dict[str, list[float]] = {"1": [], "2": []}
    waits: dict[str, list[float]] = {"1": [], "2": []}
    rank = ProcessRank("rank-0", partial(_paced, step_ms / 1e3))
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_witness_files(Path(folder))
            for number in range(rounds):
                for depth in (1, 2):
                    progress(f"round {number + 1} of {rounds} with {depth} in flight")
                    run = _Run(running, new_tokens, depth)
                    await run.to_the_end(rank, folder)
                    speeds[str(depth)].append(running * new_tokens / run.seconds)
                    waits[str(depth)] += run.waits
    finally:
        rank.close()
    speed = {depth: median(values) for depth, values in speeds.items()}
    return PipelineBench(
        running,
        step_ms,
        {depth: round(value) for depth, value in speed.items()},
        round(speed["2"] / speed["1"], 3),
        {depth: round(median(values) * 1e3, 2) for depth, values in waits.items()},
    )


def _paced(step_seconds: float, config: WorkerConfig) -> Executor:
    model = describe_model(config.model_dir, name="witness")
    return PacedWitness(config, model.vocab_size, step_seconds)


class _Run:
    """One load from its first token to its last, and newcomers beside it."""

    def __init__(self, running: int, new_tokens: int, depth: int) -> None:
        self.seconds = 0.0
        self.waits: list[float] = []
        self._running = running
        self._new_tokens = new_tokens
        self._depth = depth
        self._left = running
        self._last = 0.0
        self._submitted: dict[str, float] = {}
        self._ended = asyncio.Event()

    async def to_the_end(self, rank: ProcessRank, folder: str) -> None:
        num_blocks = (self._running + 8) * (-(-(_PROMPT + self._new_tokens) // 16) + 2)
        worker = WorkerConfig(
            folder, WITNESS_CONTEXT_TOKENS, kind=WorkerKind.WITNESS, num_blocks=num_blocks
        )
        group = await GroupRanks([rank], [worker], ["here"]).start()
        config = SchedulerConfig(
            WITNESS_CONTEXT_TOKENS,
            max_running=self._running + 8,
            max_step_tokens=self._running * _PROMPT,
            pipeline_depth=self._depth,
        )
        engine = Engine(Scheduler(config, num_blocks), group, self._take)
        loop = asyncio.create_task(engine.run())
        try:
            began = time.perf_counter()
            for number in range(self._running):
                self._submit(engine, f"r{number}", number, self._new_tokens)
            number = self._running
            while not self._ended.is_set():
                await asyncio.sleep(_NEWCOMER_EVERY_SECONDS)
                if not self._ended.is_set():
                    number += 1
                    name = f"n{number}"
                    self._submitted[name] = time.perf_counter()
                    self._submit(engine, name, number, 1)
            self.seconds = self._last - began
            async with asyncio.timeout(_SETTLE_SECONDS):
                await engine.wait_idle()
            engine.check()
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
            await group.close()

    def _submit(self, engine: Engine, name: str, number: int, max_tokens: int) -> None:
        prompt = tuple((number * 131 + index * 7) % 251 for index in range(_PROMPT))
        sampling = SamplingParams(max_tokens=max_tokens)
        engine.submit(RequestSpec(name, prompt, sampling, use_prefix_cache=False))

    def _take(self, updates: list[RequestUpdate]) -> None:
        now = time.perf_counter()
        for update in updates:
            if update.finish_reason is None:
                continue
            if update.request_id in self._submitted:
                self.waits.append(now - self._submitted.pop(update.request_id))
                continue
            self._left -= 1
            if not self._left:
                self._last = now
                self._ended.set()
