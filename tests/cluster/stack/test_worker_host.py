"""One rank's end of the wire, with a test in the engine's place."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from blockyard.cluster.handshake import HandshakeError, new_secret
from blockyard.cluster.messages import (
    Acknowledged,
    AskLedger,
    Execute,
    Executed,
    WorkerFailed,
    WorkerToEngine,
)
from blockyard.cluster.wire import MAX_FRAME_BYTES, Codec, Connection, Endpoint, connect
from blockyard.cluster.worker_host import WorkerHost
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.workers.config import WorkerProfile

pytestmark = pytest.mark.timeout(30)


class Rank:
    """An executor that answers its step's number, or fails."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.threads: set[str] = set()
        self.blocks: tuple[int, int] | None = None
        self.executed = 0
        self.moving: set[int] = set()

    def load(self) -> WorkerProfile:
        self.threads.add(threading.current_thread().name)
        return WorkerProfile(7, 1, 2, 3, "cpu", "int64")

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        self.threads.add(threading.current_thread().name)
        self.blocks = (num_blocks, num_host_blocks)

    def execute(self, plan: StepPlan) -> StepResult:
        self.threads.add(threading.current_thread().name)
        if self.fault is not None:
            raise self.fault
        self.executed = plan.step
        return StepResult(plan.step, (plan.step,), moving=bool(self.moving))

    @property
    def finished_step(self) -> int:
        return min(self.moving, default=self.executed + 1) - 1


def plan(step: int) -> Execute:
    return Execute(StepPlan(step, (), (), (), (), (), (), (), ()))


async def dial(endpoint: Endpoint) -> Connection[WorkerToEngine]:
    codec: Codec[WorkerToEngine] = Codec(WorkerToEngine)
    return await connect(endpoint, codec)


@pytest.fixture
def host() -> Iterator[Callable[..., tuple[WorkerHost, Rank, Endpoint]]]:
    made: list[WorkerHost] = []

    def make(rank: int = 0) -> tuple[WorkerHost, Rank, Endpoint]:
        executor = Rank()
        one = WorkerHost(lambda: executor, rank)
        made.append(one)
        assert one.load().max_blocks == 7
        one.allocate(5, 3)
        assert executor.blocks == (5, 3)
        return one, executor, one.listen("127.0.0.1")

    yield make
    for one in made:
        one.close()


async def test_rank_0_answers_tokens_and_others_only_that_they_are_done(host: Any) -> None:
    for rank, answer in ((0, Executed(StepResult(1, (1,)))), (1, Acknowledged(1))):
        _, executor, endpoint = host(rank)
        connection = await dial(endpoint)
        connection.post(plan(1))
        assert await connection.receive() == answer
        await connection.close()
        assert len(executor.threads) == 1  # everything in one thread


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_step_whose_blocks_still_move_is_acknowledged_later(host: Any, rank: int) -> None:
    _, executor, endpoint = host(rank)
    executor.moving = {1, 2, 3}
    connection = await dial(endpoint)
    connection.post(plan(1))
    connection.post(plan(2))
    if rank == 0:  # results do not wait
        for step in (1, 2):
            told = StepResult(step, (step,), moving=True)
            assert await connection.receive() == Executed(told)
    else:
        while executor.executed < 2:
            await asyncio.sleep(0.001)
    executor.moving = {2, 3}
    assert await connection.receive() == Acknowledged(1)  # though no plan comes
    connection.post(plan(3))
    if rank == 0:
        assert await connection.receive() == Executed(StepResult(3, (3,), moving=True))
    while executor.executed < 3:
        await asyncio.sleep(0.001)
    executor.moving = set()
    connection.post(plan(4))
    answers = [await connection.receive() for _ in range(3)]
    last = Executed(StepResult(4, (4,))) if rank == 0 else Acknowledged(4)
    assert answers == [Acknowledged(2), Acknowledged(3), last]
    await connection.close()


async def test_it_serves_one_engine_in_its_life(host: Any) -> None:
    _, _, endpoint = host()
    first = await dial(endpoint)
    first.post(plan(1))
    assert await first.receive() is not None
    with pytest.raises(OSError):  # not even while the first is there
        await dial(endpoint)
    await first.close()
    with pytest.raises(OSError):
        await dial(endpoint)


async def test_a_stranger_does_not_use_up_the_place_of_the_engine(host: Any) -> None:
    _, executor, endpoint = host()
    with pytest.raises(HandshakeError):
        await dial(replace(endpoint, secret=new_secret()))
    connection = await dial(endpoint)
    connection.post(plan(4))
    assert await connection.receive() == Executed(StepResult(4, (4,)))
    await connection.close()
    assert executor.fault is None


@pytest.mark.parametrize(
    "fault", [RuntimeError("out of memory"), OSError("the device fell off the bus")]
)
async def test_a_failure_is_told_and_nothing_more_is_run(host: Any, fault: Exception) -> None:
    _, executor, endpoint = host()
    connection = await dial(endpoint)
    executor.fault = fault
    connection.post(plan(3))
    assert await connection.receive() == WorkerFailed(3, f"{type(fault).__name__}: {fault}")
    executor.fault = None
    connection.post(plan(4))
    assert await connection.receive() is None
    await connection.close()
    with pytest.raises(OSError):
        await dial(endpoint)


@pytest.mark.parametrize("what", ["another channel's message", "a frame over the limit"])
async def test_an_engine_that_speaks_nonsense_is_hung_up_on(host: Any, what: str) -> None:
    _, executor, endpoint = host()
    connection = await dial(endpoint)
    if what == "a frame over the limit":
        connection.post_frame((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
    else:
        connection.post(AskLedger(1))
    assert await connection.receive() is None
    assert not [name for name in executor.threads if name == "MainThread"]
    await connection.close()


async def test_closing_wakes_a_rank_that_sleeps_with_its_engine_connected(host: Any) -> None:
    one, _, endpoint = host()
    connection = await dial(endpoint)
    connection.post(plan(1))
    assert await connection.receive() is not None
    await asyncio.to_thread(one.close)
    assert await connection.receive() is None
    await connection.close()


async def test_closing_ends_a_rank_that_no_engine_has_called(host: Any) -> None:
    one, _, endpoint = host()
    one.close()
    with pytest.raises(OSError):
        await dial(endpoint)


def test_what_comes_before_loading_is_refused() -> None:
    host = WorkerHost(Rank, 0)
    with pytest.raises(RuntimeError, match="load"):
        host.listen("127.0.0.1")
    with pytest.raises(RuntimeError, match="load"):
        host.allocate(1)
    host.close()
