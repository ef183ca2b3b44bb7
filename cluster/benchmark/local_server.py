"""A model served within this process: scheduler, engine and worker, without wires.

Requests go in as a closed loop; what comes out is when. Units: tokens, seconds.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from blockyard.cluster.benchmark.workloads import WorkloadRequest
from blockyard.cluster.engine import Engine
from blockyard.cluster.local_group import LocalGroup
from blockyard.scheduler.block_keys import NO_EXTRAS, block_keys
from blockyard.scheduler.config import DEFAULT_BLOCK_SIZE, SchedulerConfig
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig
from blockyard.workers.description import ModelDescription
from blockyard.workers.worker import ModelWorker

__all__ = ["LocalServer", "RequestTimes", "local_server"]

_CONTEXT_TOKENS = 2304


@dataclass(slots=True)
class RequestTimes:
    """When a request was submitted, and when each of its tokens came, in seconds."""

    submitted: float
    tokens: list[float] = field(default_factory=list)


@asynccontextmanager
async def local_server(
    model: ModelDescription,
    weights: str = "auto",
    threads: int | None = None,
    max_step_tokens: int = 256,
    max_running: int = 32,
) -> "AsyncIterator[LocalServer]":
    """A scheduler, an engine and a loaded worker in this process."""
    limits = SchedulerConfig(
        max_context_tokens=min(_CONTEXT_TOKENS, model.context_tokens),
        max_running=max_running,
        max_step_tokens=max_step_tokens,
    )
    group = LocalGroup(
        ModelWorker(
            WorkerConfig(
                model.directory,
                limits.max_context_tokens,
                weights=weights,
                threads=threads,
                block_size=limits.block_size,
                max_running=limits.max_running,
                max_step_tokens=limits.max_step_tokens,
                num_host_blocks=0,
            )
        )
    )
    profile = await group.load()
    loop = _ClosedLoop()
    engine = Engine(Scheduler(limits, profile.max_blocks), group, loop.take)
    running = asyncio.create_task(engine.run())
    try:
        yield LocalServer(engine, loop, profile.weight_bytes, running)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await group.close()


class LocalServer:
    """What `local_server` gives. `weight_bytes` are those of the worker."""

    def __init__(
        self,
        engine: Engine,
        loop: "_ClosedLoop",
        weight_bytes: int,
        running: asyncio.Task[None],
    ) -> None:
        self.weight_bytes = weight_bytes
        self._engine = engine
        self._loop = loop
        self._running = running

    async def serve(
        self, requests: Sequence[WorkloadRequest], concurrency: int
    ) -> tuple[RequestTimes, ...]:
        """Serve requests, at most so many at a time; their times, in order.

        Raises:
            RuntimeError: one failed, or not all of its tokens came, or the group was lost.
        """
        serving = asyncio.create_task(self._loop.serve(self._engine, requests, concurrency))
        try:
            await asyncio.wait((serving, self._running), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                raise RuntimeError("the group was lost while it served; the log says why")
            return await serving
        finally:
            serving.cancel()


class _ClosedLoop:
    """Keeps so many requests in flight, and writes down when their tokens come."""

    def __init__(self) -> None:
        self._times: dict[str, RequestTimes] = {}
        self._slots = asyncio.Semaphore(0)
        self._number = 0
        self._failures: list[str] = []

    def take(self, updates: list[RequestUpdate]) -> None:
        """News of a step."""
        now = time.perf_counter()
        for update in updates:
            self._times[update.request_id].tokens.extend([now] * len(update.token_ids))
            if update.finish_reason is not None:
                if update.error:
                    self._failures.append(update.error)
                self._slots.release()

    async def serve(
        self, engine: Engine, requests: Sequence[WorkloadRequest], concurrency: int
    ) -> tuple[RequestTimes, ...]:
        """Submit all, at most `concurrency` at a time; returns when all have ended."""
        self._times = {}
        self._slots = asyncio.Semaphore(concurrency)
        for request in requests:
            await self._slots.acquire()
            self._submit(engine, request)
        for _ in range(concurrency):
            await self._slots.acquire()
        if self._failures:
            raise RuntimeError(f"a request failed: {self._failures[0]}")
        for request, times in zip(requests, self._times.values(), strict=True):
            if len(times.tokens) != request.max_tokens:
                raise RuntimeError(f"{len(times.tokens)} of {request.max_tokens} tokens came")
        return tuple(self._times.values())

    def _submit(self, engine: Engine, request: WorkloadRequest) -> None:
        self._number += 1
        name = str(self._number)
        self._times[name] = RequestTimes(time.perf_counter())
        keys = block_keys(request.prompt, DEFAULT_BLOCK_SIZE, NO_EXTRAS)
        sampling = SamplingParams(temperature=0.0, max_tokens=request.max_tokens)
        engine.submit(RequestSpec(name, request.prompt, sampling, block_keys=keys))
