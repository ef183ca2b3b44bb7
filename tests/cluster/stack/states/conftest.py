"""A deployment whose groups can sleep and get other weights: of the witness, its vocabulary."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from blockyard.cluster.central_link import CentralLink
from blockyard.cluster.engine_server import EngineServer
from blockyard.cluster.group_identity import GroupIdentity
from blockyard.cluster.local_group import LocalGroup
from blockyard.cluster.request.admin import AdminDoor
from blockyard.cluster.request.caller import ANYBODY
from blockyard.cluster.resting import Rest, Weights
from blockyard.cluster.states.engine_state import EngineState
from blockyard.cluster.states.state_api import StateApi
from blockyard.protos import cluster_pb2 as pb
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig
from blockyard.workers.description import ModelDescription
from blockyard.workers.fake import WitnessWorker

OLD, NEW, CONTEXT, BLOCK = 251, 257, 256, 4
PROMPT = tuple(range(3, 23))


def write_weights(directory: Path, vocab: int) -> None:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text('{"model_type": "witness"}')
    (directory / "vocab").write_text(str(vocab))


class Restable:
    """A group that can sleep; its weights are below a directory of its own."""

    def __init__(self, stack: Any, number: int, root: Path) -> None:
        self._stack, self._number, self.root = stack, number, root
        write_weights(root / "started", OLD)
        write_weights(root / "new", NEW)
        self.may_load = asyncio.Event()
        self.may_load.set()

    async def start(self) -> None:
        weights = Weights(str(self.root / "started"))
        self._group = self._make(weights)
        limits = SchedulerConfig(CONTEXT, block_size=BLOCK, max_running=16, max_step_tokens=64)
        changed = asyncio.Event()
        self.server = await EngineServer.start(
            Scheduler(limits, 64), self._group, "127.0.0.1", changed.set
        )
        at = self.server.endpoint
        identity = GroupIdentity(
            f"group-{self._number}",
            ModelDescription("witness", weights.directory, "Witness", CONTEXT, OLD, ()),
            *("cpu", "int64", BLOCK, at.host, at.port, at.secret),
        )
        rest = Rest(self.server.engine.succession, self._free, self._load, weights)
        self.state = EngineState(rest, weights.directory, str(self.root))
        link = CentralLink(self.server, identity, self._stack.locate, changed, self.state)
        self._link = asyncio.create_task(link.run())

    def _make(self, weights: Weights) -> LocalGroup:
        vocab = int((Path(weights.directory) / "vocab").read_text())
        worker = WitnessWorker(WorkerConfig("", CONTEXT, block_size=BLOCK, num_blocks=64), vocab)
        worker.allocate(64)
        return LocalGroup(worker, weights.version)

    async def _free(self) -> None:
        await self._group.close()

    async def _load(self, weights: Weights) -> LocalGroup:
        await self.may_load.wait()
        self._group = self._make(weights)
        return self._group

    async def close(self) -> None:
        self._link.cancel()
        await self.server.close()
        await self._group.close()
        await asyncio.gather(self._link, return_exceptions=True)


class Deployment:
    """Groups behind one ingress, and the calls that change what they are."""

    def __init__(self, stack: Any, folder: Path) -> None:
        self.stack, self._folder = stack, folder
        self.groups: list[Restable] = []
        dispatcher = stack.dispatcher
        self.api = StateApi(
            dispatcher, dispatcher.binder, lambda: dispatcher.links.groups.values(), AdminDoor(True)
        )

    async def add(self) -> Restable:
        number = len(self.groups)
        group = Restable(self.stack, number, self._folder / str(number))
        await group.start()
        self.groups.append(group)
        await self.stack.until(lambda: len(self.stack.dispatcher.group_ids) > number)
        return group

    async def sleep(self) -> pb.ModelState:
        return await self.api.sleep(pb.SleepRequest(), ANYBODY)

    async def wake(self) -> pb.ModelState:
        return await self.api.wake_up(pb.WakeUpRequest(), ANYBODY)

    async def update(self, directory: str = "new") -> pb.ModelState:
        return await self.api.update_weights(pb.UpdateWeightsRequest(directory=directory), ANYBODY)

    async def settled(self) -> None:
        """The central scheduler has heard of all that engines have."""

        def heard() -> bool:
            members = self.stack.central._members
            return all(
                len(members[f"group-{g._number}"].prefix) == len(g.server.engine.prefix_keys())
                and members[f"group-{g._number}"].candidate.ledger == g.server.ledger()
                for g in self.groups
            )

        await self.stack.until(heard)

    @property
    def told(self) -> pb.ModelState:
        return self.api.state("witness")


@pytest.fixture
async def deployment(stack: Any, tmp_path: Path) -> AsyncIterator[Deployment]:
    made = Deployment(stack, tmp_path)
    for _ in range(2):
        await made.add()
    yield made
    for group in made.groups:
        if group.server.engine.lost is None and not group.state.resting:
            group.server.check()
        await group.close()


@pytest.fixture
def ask(deployment: Deployment, spec: Callable[..., Any], collected: Callable[..., Any]) -> Any:
    """Asks for some tokens after the prompt: they, and how many of the prompt's were found."""
    names = iter(range(1000))

    async def ask(count: int = 20, prompt: tuple[int, ...] = PROMPT) -> tuple[list[int], int]:
        stream = await deployment.stack.dispatcher.submit(
            "witness", spec(f"asked {next(names)}", prompt, count)
        )
        tokens, updates = await collected(stream)
        return tokens, updates[-1].cached_tokens

    return ask
