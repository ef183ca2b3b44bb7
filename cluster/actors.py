"""Ray actors: thin shells round the worker host and the central scheduler.

Plain classes, wrapped with `ray.remote` where they are launched, so that tests build them without
a cluster. Ray carries life cycle and start-up calls only; steps and tokens go over the wire.
"""

import asyncio
import contextlib
import os
import signal
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from blockyard.cluster.central import CentralScheduler
from blockyard.cluster.config import ServeConfig
from blockyard.cluster.logs import LogConfig, start_logging
from blockyard.cluster.rank import Rank, RankDied
from blockyard.cluster.states.model_state import ModelState
from blockyard.cluster.tracing import make_tracer
from blockyard.cluster.wire import Endpoint
from blockyard.scheduler.group_load import ClusterLoad

__all__ = [
    "CENTRAL_NAME",
    "NAMESPACE",
    "ActorRank",
    "CentralActor",
    "WorkerActor",
    "central_actor",
    "kill_central",
    "launch_worker",
    "listening_host",
    "locate_central",
]

NAMESPACE = "blockyard"
CENTRAL_NAME = "blockyard-central"


def listening_host(wire_host: str | None) -> str:
    """Where this process listens for its peers: as configured, else this node's address."""
    return wire_host if wire_host is not None else str(ray.util.get_node_ip_address())


class WorkerActor(Rank):
    """One rank in an actor's process."""

    def __init__(self, wire_host: str | None, logs: LogConfig) -> None:
        start_logging(logs)
        super().__init__(listening_host(wire_host))

    def machine(self) -> str:
        """The node this rank is on, by a name that its peers use too."""
        return str(ray.get_runtime_context().get_node_id())


class ActorRank:
    """A `RankHandle` of a `WorkerActor`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._local_process: int | None = None

    async def machine(self) -> str:
        """The node it is on; waits until it is there."""
        node, process = await asyncio.gather(self.call("machine"), self.call("process_id"))
        if node == ray.get_runtime_context().get_node_id():
            self._local_process = process
        return str(node)

    def signal(self, number: int) -> None:
        """See `chaos.Victim`."""
        if self._local_process is None:
            raise LookupError("the rank is not on its engine's node, or has been ended")
        try:
            os.kill(self._local_process, number)
        except ProcessLookupError:
            raise LookupError("the rank has died already") from None

    def kill(self) -> None:
        """End its process, if it has not ended."""
        ray.kill(self._actor)
        if self._local_process is not None:
            # A process that was stopped does not hear Ray's word.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._local_process, signal.SIGKILL)
            self._local_process = None

    async def call(self, method: str, *arguments: object) -> Any:
        """See `RankHandle`."""
        try:
            return await getattr(self._actor, method).remote(*arguments)
        except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError) as error:
            raise RankDied(f"a rank has died: {error}") from error


class CentralActor:
    """The central scheduler in a process of its own, found by name."""

    def __init__(self, wire_host: str | None, logs: LogConfig, trace_endpoint: str | None) -> None:
        start_logging(logs)
        self._wire_host = wire_host
        self._tracer = make_tracer(trace_endpoint, "central")
        self._central = CentralScheduler(tracer=self._tracer)
        self._stage = ""
        self._failure = ""

    async def endpoint(self) -> Endpoint:
        """Where engines and ingresses connect."""
        await self._central.start(listening_host(self._wire_host))
        return self._central.endpoint

    async def drain(self, timeout_seconds: float) -> bool:
        """Stop admitting everywhere and wait for live requests; False on time-out."""
        drained = await self._central.drain(timeout_seconds)
        # Nothing is bound any more, and whoever drains ends this process next.
        await asyncio.to_thread(self._tracer.close)
        return drained

    async def load(self, model: str, places: int) -> ClusterLoad:
        """See `CentralScheduler.load`."""
        return self._central.load(model, places)

    async def model_state(self, model: str) -> ModelState | None:
        """What the groups of a model are to be; None: that is not known."""
        return self._central.states.wanted(model)

    async def note_stage(self, stage: str) -> None:
        """A group says how far its start has come."""
        self._stage = stage

    async def note_failure(self, reason: str) -> None:
        """A group could not start; whoever is starting the deployment gives up for this reason."""
        self._failure = reason

    async def start_state(self) -> tuple[str, str]:
        """The newest stage of any group's start, and why a group could not start."""
        return self._stage, self._failure

    async def process_id(self) -> int:
        """This process's id, for operators and fault tests."""
        return os.getpid()


def central_actor(config: ServeConfig) -> Any:
    """The cluster's central scheduler; started as `config` says by whoever asks first.

    Detached, because it must outlive the process that happened to start it; Ray restarts it when
    it dies, and its state comes back from the engines.
    """
    return (
        ray.remote(CentralActor)
        .options(
            name=CENTRAL_NAME,
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            resources={config.central_resource: 1} if config.central_resource else None,
            max_restarts=-1,
            max_concurrency=64,
        )
        .remote(config.wire_host, config.logs, config.trace_endpoint)
    )


async def kill_central(config: ServeConfig) -> None:
    """Kill its process; Ray starts it anew."""
    central = await asyncio.to_thread(central_actor, config)
    ray.kill(central, no_restart=False)


async def locate_central(config: ServeConfig) -> Endpoint:
    """The central scheduler's endpoint, asked for anew.

    Raises:
        ConnectionError: it is down at the moment, or Ray cannot say where it is.
    """
    try:
        # Ray looks the name up with a call that blocks, for long when its own head is away;
        # meanwhile the caller's event loop has steps to run and streams to serve.
        central = await asyncio.to_thread(central_actor, config)
        endpoint: Endpoint = await central.endpoint.remote()
    except ray.exceptions.RayError as error:
        raise ConnectionError("the central scheduler is restarting") from error
    return endpoint


def launch_worker(config: ServeConfig, bundle_index: int, uses_gpu: bool) -> ActorRank:
    """Start one rank in the given bundle of this replica's placement group."""
    placement_group = ray.util.get_current_placement_group()
    if placement_group is None:
        raise RuntimeError("a group's replica must run inside its placement group")
    actor = (
        ray.remote(WorkerActor)
        .options(
            num_cpus=1,
            num_gpus=1 if uses_gpu else 0,
            max_concurrency=2,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group, placement_group_bundle_index=bundle_index
            ),
        )
        .remote(config.wire_host, config.logs)
    )
    return ActorRank(actor)
