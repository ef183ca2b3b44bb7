"""Faults by the door that they come through, in one process: who may have what go wrong."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from blockyard.cluster.chaos.chaos_api import ChaosApi
from blockyard.cluster.chaos.chaos_client import ChaosRefused, disturb
from blockyard.cluster.chaos.engine_faults import EngineFaults
from blockyard.cluster.chaos.faults import Fault
from blockyard.cluster.client import GenerationClient, ServerError
from blockyard.cluster.grpc_front import GrpcFront
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.request import RequestSpec
from blockyard.scheduler.scarcity import set_host_blocks_aside
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.fake import witness_generate

pytestmark = pytest.mark.timeout(60)

Spec = Callable[..., RequestSpec]


class Rank:
    """Writes down which signals it was sent."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    def signal(self, number: int) -> None:
        self.signals.append(number)


class Door:
    """A stack of one group with two ranks, and a gRPC server with the service of faults."""

    def __init__(self, stack: Any) -> None:
        self.stack = stack
        self.ranks = [Rank(), Rank()]
        self.killed = 0

    async def start(self) -> None:
        self.group = await self.stack.add_group(ranks=2)
        self.group.server.disturb = EngineFaults(
            self.group.server, lambda: self.ranks, lambda: self.group.group
        )
        self.stack.dispatcher._resume_seconds = 30.0
        api = ChaosApi(self.stack.dispatcher.links, self._kill_central)
        self.front = GrpcFront(self.stack.dispatcher, {}, chaos=api)
        self.client = GenerationClient(f"127.0.0.1:{await self.front.start('127.0.0.1:0')}", 20)

    async def _kill_central(self) -> None:
        self.killed += 1


@pytest.fixture
async def door(stack: Any) -> AsyncIterator[Door]:
    made = Door(stack)
    await made.start()
    yield made
    await made.client.close()
    await made.front.stop(None)


async def test_each_fault_befalls_whom_it_is_meant_for(door: Door) -> None:
    for fault, number in ((Fault.KILL_RANK, signal.SIGKILL), (Fault.STOP_RANK, signal.SIGSTOP)):
        answer = await disturb(door.client, fault, "group-0", rank=1)
        assert answer.group_id == "group-0"
        assert door.ranks[1].signals.pop() == number
    await disturb(door.client, Fault.STALL_RANK, rank=0, seconds=0.05)
    await door.stack.until(lambda: len(door.ranks[0].signals) == 2)
    assert door.ranks[0].signals == [signal.SIGSTOP, signal.SIGCONT]
    assert door.ranks[1].signals == []
    await disturb(door.client, Fault.KILL_CENTRAL)
    assert door.killed == 1


async def test_a_wire_to_a_rank_that_breaks_loses_the_group(door: Door) -> None:
    await disturb(door.client, Fault.DROP_RANK_WIRE, rank=1)
    await door.stack.until(lambda: door.group.server.lost is not None)
    assert "rank 1" in door.group.server.lost


@pytest.mark.parametrize("fault", [Fault.DELAY_RANK_WIRE, Fault.DROP_INGRESS_WIRE])
async def test_streams_outlive_wires_that_are_slow_or_break(
    door: Door, spec: Spec, collected: Callable[..., Any], fault: Fault
) -> None:
    asked = spec("a", (1, 2, 3), 200)
    reading = asyncio.create_task(collected(await door.stack.dispatcher.submit("witness", asked)))
    await disturb(door.client, fault, rank=1, seconds=0.2)
    tokens, _ = await reading
    assert tokens == witness_generate((1, 2, 3), 200, 251)


@pytest.mark.parametrize(
    ("told", "field"),
    [
        ({"fault": "no-such"}, "fault"),
        ({"fault": "kill-rank", "rank": 2}, "rank"),
        ({"fault": "kill-rank", "group_id": "nowhere"}, "group_id"),
        ({"fault": "stall-rank", "seconds": 601.0}, "seconds"),
    ],
)
async def test_what_cannot_go_wrong_is_named(door: Door, told: dict[str, Any], field: str) -> None:
    with pytest.raises(ServerError) as refused:
        await disturb(door.client, **told)
    assert (refused.value.code, refused.value.field) == ("INVALID_ARGUMENT", field)


async def test_an_engine_that_allows_no_faults_does_as_it_did(door: Door) -> None:
    door.group.server.disturb = None
    with pytest.raises(ServerError, match="not started with faults allowed"):
        await disturb(door.client, Fault.KILL_RANK)
    assert door.ranks[0].signals == []


async def test_an_ingress_that_allows_none_has_no_such_service(stack: Any) -> None:
    front = GrpcFront(stack.dispatcher, {})
    port = await front.start("127.0.0.1:0")
    async with GenerationClient(f"127.0.0.1:{port}", 20) as client:
        with pytest.raises(ChaosRefused, match="--allow-chaos"):
            await disturb(client, Fault.KILL_RANK)
    await front.stop(None)


def test_host_blocks_that_are_set_aside_stay_on_the_books() -> None:
    scheduler = Scheduler(SchedulerConfig(64, block_size=4), 8, 6)
    assert set_host_blocks_aside(scheduler, True) == 6
    scheduler.check()
    assert scheduler.ledger().host_blocks.active == 6
    assert set_host_blocks_aside(scheduler, False) == 6
    assert set_host_blocks_aside(scheduler, False) == 0
    scheduler.check()
    assert scheduler.ledger().host_blocks.free == 6
