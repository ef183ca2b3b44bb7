"""All processes of a deployment in one: real wires, real scheduler, witness workers, no Ray."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from blockyard.cluster.central import CentralScheduler
from blockyard.cluster.central_link import CentralLink
from blockyard.cluster.dispatch import TokenStream
from blockyard.cluster.engine_server import EngineServer
from blockyard.cluster.ingress import ClusterDispatcher
from blockyard.cluster.messages import GroupIdentity
from blockyard.cluster.moves.block_carrier import BlockCarrier
from blockyard.cluster.states.engine_state import EngineState
from blockyard.cluster.wire import Endpoint
from blockyard.cluster.worker_group import WorkerGroup
from blockyard.cluster.worker_host import WorkerHost
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import FinishReason, RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.adapter_description import AdapterDescription
from blockyard.workers.config import Executor, TakesAdapters, WorkerConfig, WorkerProfile
from blockyard.workers.description import ModelDescription
from blockyard.workers.fake import WitnessWorker, witness_generate
from blockyard.workers.host_memory import HostMemory, SharesHostMemory

VOCAB = 251
CONTEXT = 256
MODEL = ModelDescription("witness", "/nowhere", "Witness", CONTEXT, VOCAB, ())


class GatedWorker:
    """A witness whose steps wait while the gate is shut, and that fails or dies on demand."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.fault: Exception | None = None

    def load(self) -> WorkerProfile:
        return self._inner.load()

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        self._inner.allocate(num_blocks, num_host_blocks)

    def load_adapter(self, adapter: AdapterDescription) -> None:
        assert isinstance(self._inner, TakesAdapters)
        self._inner.load_adapter(adapter)

    def drop_adapter(self, adapter_id: str) -> None:
        assert isinstance(self._inner, TakesAdapters)
        self._inner.drop_adapter(adapter_id)

    def host_memory(self) -> HostMemory | None:
        assert isinstance(self._inner, SharesHostMemory)
        return self._inner.host_memory()

    def execute(self, plan: StepPlan) -> StepResult:
        self.entered.set()
        self.gate.wait(timeout=60)
        if self.fault is not None:
            raise self.fault
        return self._inner.execute(plan)


def _given(worker: GatedWorker) -> GatedWorker:
    return worker


@dataclass
class StackGroup:
    """One group of a stack."""

    workers: list[GatedWorker]
    hosts: list[WorkerHost]
    group: WorkerGroup
    server: EngineServer
    link: asyncio.Task[None]
    carrier: BlockCarrier | None = None

    async def close(self) -> None:
        self.link.cancel()
        for worker in self.workers:
            worker.gate.set()
        await self.server.close()
        if self.carrier is not None:
            await self.carrier.close()
        await self.group.close()
        for host in self.hosts:
            host.close()
        await asyncio.gather(self.link, return_exceptions=True)


@dataclass
class Stack:
    """A running deployment."""

    central: CentralScheduler | None = None
    groups: list[StackGroup] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dispatcher = ClusterDispatcher((MODEL,), self.locate)

    async def locate(self) -> Endpoint:
        if self.central is None:
            raise ConnectionError("the central scheduler is down")
        return self.central.endpoint

    async def start_central(self) -> None:
        self.central = CentralScheduler()
        await self.central.start("127.0.0.1")

    async def stop_central(self) -> None:
        assert self.central is not None
        central, self.central = self.central, None
        await central.close()

    async def add_group(
        self,
        num_blocks: int = 64,
        ranks: int = 1,
        block_size: int = 4,
        max_running: int = 16,
        num_host_blocks: int = 0,
        version: str = "",
        make: Callable[[WorkerConfig], Executor] = lambda config: WitnessWorker(config, VOCAB),
        prepare: Callable[[EngineServer, Any], Awaitable[EngineState]] | None = None,
        **told: Any,
    ) -> StackGroup:
        """One more group; `told` goes on to `EngineServer.start`.

        `make` makes a rank's executor. `prepare` is given its server, and what has its workers,
        before it joins.
        """
        workers = []
        hosts = []
        for rank in range(ranks):
            config = WorkerConfig("", CONTEXT, block_size=block_size, num_blocks=num_blocks)
            worker = GatedWorker(make(replace(config, num_host_blocks=num_host_blocks)))
            host = WorkerHost(partial(_given, worker), rank)
            host.load()
            host.allocate(num_blocks, num_host_blocks)
            workers.append(worker)
            hosts.append(host)
        group = await WorkerGroup.connect([host.listen("127.0.0.1") for host in hosts], version)
        carrier = None
        if num_host_blocks:
            doors = [host.open_door("127.0.0.1") for host in hosts]
            carrier = await BlockCarrier.connect([(door.control, door.door) for door in doors])
            carrier.on_gone = group.lose
        scheduler = Scheduler(
            SchedulerConfig(
                CONTEXT,
                block_size=block_size,
                max_running=max_running,
                max_step_tokens=64,
                weight_version=version,
            ),
            num_blocks,
            num_host_blocks,
        )
        changed = asyncio.Event()
        server = await EngineServer.start(scheduler, group, "127.0.0.1", changed.set, **told)
        server.moves.carrier = lambda: carrier
        endpoint = server.endpoint
        identity = GroupIdentity(
            f"group-{len(self.groups)}",
            MODEL,
            "cpu",
            "int64",
            block_size,
            endpoint.host,
            endpoint.port,
            endpoint.secret,
            places=max_running,
            max_waiting=scheduler.config.max_waiting,
        )
        state = None
        if prepare is not None:
            state = await prepare(server, SimpleNamespace(workers=workers))
        link = CentralLink(server, identity, self.locate, changed, state)
        self.groups.append(
            StackGroup(workers, hosts, group, server, asyncio.create_task(link.run()), carrier)
        )
        await self.until(lambda: len(self.dispatcher.group_ids) == len(self.groups))
        return self.groups[-1]

    async def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait for a state, with a deadline."""
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.002)

    def idle(self) -> bool:
        """Whether all books are back where they began."""
        for group in self.groups:
            group.server.check()
            ledger = group.server.ledger()
            if (
                ledger.blocks.free + ledger.blocks.cached != ledger.blocks.total
                or group.server.engine.lost
            ):
                return False
            if ledger.requests.running or ledger.requests.waiting or ledger.requests.parked:
                return False
        return True


def make_spec(
    name: str, prompt: tuple[int, ...], max_tokens: int, priority: int = 0
) -> RequestSpec:
    """A greedy request."""
    return RequestSpec(name, prompt, SamplingParams(max_tokens=max_tokens), priority)


async def collect(stream: TokenStream) -> tuple[list[int], list[RequestUpdate]]:
    """All tokens of a stream, and its updates."""
    updates = [update async for update in stream]
    return [token for update in updates for token in update.token_ids], updates


class StreamReader:
    """A client that reads its stream to the end, with the tokens that have come so far."""

    def __init__(self, spec: RequestSpec, stream: TokenStream) -> None:
        self.spec = spec
        self.stream = stream
        self.tokens: list[int] = []
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for update in self.stream:
            self.tokens.extend(update.token_ids)
            assert update.finish_reason in (None, FinishReason.LENGTH)

    async def check(self) -> None:
        """They are those that the witness alone would have answered."""
        await self.reading
        limit = self.spec.sampling.max_tokens or 0
        assert self.tokens == witness_generate(self.spec.prompt_token_ids, limit, VOCAB)


@pytest.fixture
def spec() -> Callable[..., RequestSpec]:
    return make_spec


@pytest.fixture
def collected() -> Callable[..., object]:
    return collect


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    running = Stack()
    await running.start_central()
    runner = asyncio.create_task(running.dispatcher.run())
    yield running
    for group in running.groups:
        await group.close()
    runner.cancel()
    await asyncio.gather(runner, return_exceptions=True)
    await running.dispatcher.close()
    if running.central is not None:
        with contextlib.suppress(OSError):
            await running.central.close()


@pytest.fixture
def begin(stack: Stack) -> Callable[[RequestSpec], Awaitable[StreamReader]]:
    """Asks for something, and reads the answer while the test goes on."""

    async def begin(asked: RequestSpec) -> StreamReader:
        return StreamReader(asked, await stack.dispatcher.submit("witness", asked))

    return begin
