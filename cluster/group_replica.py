"""A Serve replica that hosts one group: starts its ranks, runs its engine, tells its health.

The only thing Serve does with it is life cycle: no request and no token passes through a handle.
"""

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace as replace_state
from ray.exceptions import RayTaskError

from blockyard.cluster.actors import (
    ActorRank,
    central_actor,
    launch_worker,
    listening_host,
    locate_central,
)
from blockyard.cluster.books.group_books import facts_of
from blockyard.cluster.books.request_spans import RequestSpans
from blockyard.cluster.central_link import CentralLink
from blockyard.cluster.chaos.engine_faults import EngineFaults
from blockyard.cluster.config import ServeConfig
from blockyard.cluster.engine_server import EngineServer
from blockyard.cluster.garbage import collect_rarely
from blockyard.cluster.group_ranks import GroupRanks
from blockyard.cluster.logs import start_logging
from blockyard.cluster.messages import GroupIdentity
from blockyard.cluster.rank_watch import RankWatch
from blockyard.cluster.resting import Rest, Weights
from blockyard.cluster.states.engine_state import EngineState
from blockyard.cluster.states.model_state import STARTED, ModelState
from blockyard.cluster.states.weight_files import weights_under
from blockyard.cluster.tracing import make_tracer
from blockyard.cluster.worker_group import WorkerGroup
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.adapter_description import AdapterRefused
from blockyard.workers.config import AllocatorMemory, WorkerProfile

__all__ = ["GroupReplica"]

logger = logging.getLogger(__name__)

HAND_OVER_SECONDS = 5.0
"""After a drain, for other groups to fetch the blocks of what still ran."""


class GroupReplica:
    """One group. Serve awaits `__init__`, so the replica counts as up once it can step."""

    async def __init__(self, config: ServeConfig, uses_gpu: bool) -> None:  # type: ignore[misc]  # Serve awaits
        self._config = config
        start_logging(config.logs)
        self._forming = False
        self._group_id = f"group-{uuid.uuid4().hex[:8]}"
        self._tracer = make_tracer(config.trace_endpoint, "engine")
        self._spans = RequestSpans(self._tracer, self._group_id)
        self._central = central_actor(config)
        try:
            await self._start(config, uses_gpu)
        except Exception as error:
            # Awaited: Serve ends this process as soon as the exception has left it.
            await self._central.note_failure.remote(_reason(error))
            raise

    async def _start(self, config: ServeConfig, uses_gpu: bool) -> None:
        self._note("starting workers")
        self._launch = partial(launch_worker, config, uses_gpu=uses_gpu)
        self._workers = [self._launch(rank + 1) for rank in range(config.num_ranks)]
        machines = await asyncio.gather(*(worker.machine() for worker in self._workers))
        weights, state = await self._wanted()
        configs = [
            replace(config.worker(rank), model_dir=weights.directory)
            for rank in range(config.num_ranks)
        ]
        self._ranks = GroupRanks(
            self._workers, configs, machines, self._note, weights.version, moves_blocks=True
        )
        self._group = await self._ranks.start()
        profiles = self._ranks.profiles
        num_blocks, num_host_blocks = self._ranks.num_blocks, self._ranks.num_host_blocks
        limits = replace(config.scheduler, weight_version=weights.version)
        changed = asyncio.Event()
        self._server = await EngineServer.start(
            Scheduler(limits, num_blocks, num_host_blocks, _slowest_rates(profiles)),
            self._group,
            listening_host(config.wire_host),
            changed.set,
            facts_of(profiles),
            self._ask_memory if profiles[0].device.startswith("cuda") else None,
            self._repair,
        )
        self._server.moves.carrier = lambda: self._ranks.carrier
        state = await self._load_adapters(state)
        if self._tracer.on:
            self._server.engine.listen(self._spans)
        if config.allow_chaos:
            self._server.disturb = EngineFaults(
                self._server, lambda: self._workers, lambda: self._group
            )
        endpoint = self._server.endpoint
        identity = GroupIdentity(
            group_id=self._group_id,
            model=config.model,
            device=profiles[0].device,
            dtype=profiles[0].dtype,
            block_size=config.block_size,
            host=endpoint.host,
            port=endpoint.port,
            secret=endpoint.secret,
            places=limits.max_running,
            max_waiting=limits.max_waiting,
        )
        locate = partial(locate_central, config)
        rest = Rest(self._server.engine.succession, self._free, self._load, weights)
        becomes = EngineState(
            rest,
            config.model.directory,
            config.weights_root,
            state,
            self._server.engine.adapters,
        )
        link = CentralLink(self._server, identity, locate, changed, becomes)
        self._link = asyncio.create_task(link.run(), name="central-link")
        watch = RankWatch(self._server.engine.stalled_seconds, self._watched, self._end_rank)
        self._watch = asyncio.create_task(watch.run(), name="rank-watch")
        collect_rarely()
        logger.info(
            "%s serves %s with %d blocks and %d in host memory",
            self._group_id,
            config.model.name,
            num_blocks,
            num_host_blocks,
        )

    async def check_health(self) -> None:
        """Called by Serve; raising has the replica replaced."""
        if self._server.lost is not None:
            raise RuntimeError(f"{self._group_id}: {self._server.lost}")
        if self._link.done() or self._watch.done():
            raise RuntimeError(f"{self._group_id}: what keeps it in touch with others has ended")
        stalled = self._server.engine.stalled_seconds()
        if stalled > self._config.stall_seconds:
            raise RuntimeError(f"{self._group_id} has work but took no step for {stalled:.0f} s")

    async def _repair(self) -> WorkerGroup:
        """Start ranks in the place of those that died, in the same bundles, and form the group."""
        self._forming = True
        try:
            await self._group.close()
            self._group = await self._ranks.reform(self._replacement)
        finally:
            self._forming = False
        return self._group

    async def _wanted(self) -> tuple[Weights, ModelState]:
        """The weights that groups of this model have by now, and what a group with them is."""
        own = self._config.model.directory
        wanted: ModelState | None = await self._central.model_state.remote(self._config.model.name)
        adapters = self._config.adapters if wanted is None else wanted.adapters
        if wanted is None or not wanted.directory or self._config.weights_root is None:
            return Weights(own), replace_state(STARTED, adapters=adapters)
        directory = await asyncio.to_thread(
            weights_under, Path(self._config.weights_root), wanted.directory
        )
        # One that is to sleep is awake at first, and hears of it when it has joined.
        generation = wanted.generation - wanted.asleep
        state = ModelState(generation, False, wanted.directory, wanted.version, adapters)
        return Weights(str(directory), wanted.version), state

    async def _load_adapters(self, state: ModelState) -> ModelState:
        """Load what groups of this model have by now; what the group is with them.

        Raises:
            AdapterRefused: one that it was started with cannot be had.
        """
        adapters = self._server.engine.adapters
        adapters.host, self._ranks.note_lost = self._ranks, adapters.lost
        for adapter in state.adapters:
            self._note(f"loading the adapter {adapter.name}")
            try:
                await adapters.load(adapter)
            except AdapterRefused as refusal:
                if adapter in self._config.adapters:
                    raise AdapterRefused(f"adapter {adapter.name}: {refusal}") from None
                logger.warning("%s is served without %s: %s", self._group_id, adapter, refusal)
        return replace_state(state, adapters=adapters.served)

    async def _free(self) -> None:
        self._forming = True  # and so while it sleeps
        await self._group.close()
        await self._ranks.rest()

    async def _load(self, weights: Weights) -> WorkerGroup:
        self._forming = True
        try:
            self._group = await self._ranks.wake(weights, self._replacement)
        finally:
            self._forming = False
        return self._group

    def _watched(self) -> list[ActorRank]:
        # Who starts, loads or waits for the others has better things to do than answer.
        return [] if self._forming or self._group.lost else self._workers

    def _end_rank(self, rank: int) -> None:
        self._workers[rank].kill()
        self._group.lose(f"rank {rank} was stuck and has been ended")

    async def _replacement(self, rank: int) -> ActorRank:
        # Whoever does not answer is not to come back to a group that has another in its place.
        self._workers[rank].kill()
        self._workers[rank] = self._launch(rank + 1)
        await self._workers[rank].machine()
        return self._workers[rank]

    async def _ask_memory(self) -> tuple[AllocatorMemory | None, ...]:
        asked = (worker.call("allocator_memory") for worker in self._workers)
        return tuple(await asyncio.gather(*asked))

    async def process_ids(self) -> list[int]:
        """Process ids of the ranks, for operators and fault tests."""
        return list(await asyncio.gather(*(w.call("process_id") for w in self._workers)))

    async def __del__(self) -> None:
        """Drain: called by Serve once, inside `graceful_shutdown_timeout_s`."""
        server: EngineServer | None = getattr(self, "_server", None)
        if server is None:
            return
        server.start_drain()
        try:
            async with asyncio.timeout(self._config.drain_seconds):
                await server.engine.wait_idle()
        except TimeoutError:
            logger.warning(
                "%s: drained for %g s and some requests still ran",
                self._group_id,
                self._config.drain_seconds,
            )
            server.hand_over()
            await server.moves.settled(HAND_OVER_SECONDS)
        for task in (self._link, self._watch):
            task.cancel()
        await asyncio.gather(self._link, self._watch, return_exceptions=True)
        server.engine.adapters.close()
        await server.close()
        await self._ranks.close()
        await self._group.close()
        self._spans.close()
        await asyncio.to_thread(self._tracer.close)

    def _note(self, stage: str) -> None:
        reference: Any = self._central.note_stage.remote(stage)
        del reference  # nobody waits for it: it only feeds a progress bar


def _reason(error: Exception) -> str:
    """What went wrong, in a line; for an exception of a worker actor, the worker's own."""
    cause = error.as_instanceof_cause() if isinstance(error, RayTaskError) else error
    original = getattr(cause, "cause", None) or cause
    return f"{type(original).__name__}: {original}"


def _slowest_rates(profiles: Sequence[WorkerProfile]) -> RateMeter:
    """What a step and a swap take as measured at load: ranks work side by side, the slowest counts.

    A rate that one of them has not measured is not known.
    """
    return RateMeter(
        block_bytes=max(profile.block_bytes for profile in profiles),
        prefill_tokens_per_second=min(p.prefill_tokens_per_second for p in profiles),
        link_bytes_per_second=min(p.link_bytes_per_second for p in profiles),
    )
