"""The engine's side of the ranks, with a test in the place of every rank."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from blockyard.cluster.group import GroupLost
from blockyard.cluster.messages import (
    Acknowledged,
    Executed,
    ToWorker,
    WorkerFailed,
)
from blockyard.cluster.wire import Codec, Connection, Endpoint, Listener, listen
from blockyard.cluster.worker_group import WorkerGroup
from blockyard.scheduler.plan import StepPlan, StepResult

pytestmark = pytest.mark.timeout(30)


def plan(step: int, tokens: int = 1) -> StepPlan:
    return StepPlan(step, (), (), (), (1,), (0,), (tokens,), (True,), (9,) * tokens)


class Ranks:
    """Ranks that say what a test makes them say."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.wires: list[Connection[ToWorker]] = []
        self.plans: list[asyncio.Queue[StepPlan]] = []
        self.reading: list[asyncio.Event] = []
        self.group: WorkerGroup
        self.changes: list[tuple[int, str | None]] = []
        self.ended: asyncio.Queue[None] = asyncio.Queue()

    async def start(self, num_ranks: int) -> WorkerGroup:
        endpoints = [await self._listen() for _ in range(num_ranks)]
        self.group = await WorkerGroup.connect(endpoints)
        self.group.on_change(
            lambda: self.changes.append((self.group.acknowledged_step, self.group.lost))
        )
        return self.group

    async def say(self, rank: int, message: object) -> None:
        while len(self.wires) < len(self.listeners):
            await asyncio.sleep(0.001)
        self.wires[rank].post(message)

    async def until_lost(self) -> str:
        while self.group.lost is None:
            await asyncio.sleep(0.001)
        return self.group.lost

    async def until_acknowledged(self, step: int) -> None:
        while self.group.acknowledged_step < step:
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        await self.group.close()
        for listener in self.listeners:
            await listener.close()

    async def _listen(self) -> Endpoint:
        plans: asyncio.Queue[StepPlan] = asyncio.Queue()
        reading = asyncio.Event()
        reading.set()
        self.plans.append(plans)
        self.reading.append(reading)

        async def serve(connection: Connection[ToWorker]) -> None:
            self.wires.append(connection)  # the group connects in rank order
            while (message := await connection.receive()) is not None:
                plans.put_nowait(message.plan)
                await reading.wait()
            self.ended.put_nowait(None)

        codec: Codec[ToWorker] = Codec(ToWorker)
        self.listeners.append(await listen(codec, serve))
        return self.listeners[-1].endpoint


@pytest.fixture
async def ranks() -> AsyncIterator[Ranks]:
    made = Ranks()
    yield made
    await made.close()


async def test_every_rank_gets_the_plan_and_rank_0_ends_the_step(ranks: Ranks) -> None:
    group = await ranks.start(3)
    step = asyncio.create_task(group.execute(plan(1)))
    assert [await ranks.plans[rank].get() for rank in range(3)] == [plan(1)] * 3
    await ranks.say(0, Executed(StepResult(1, (5,))))
    assert await step == StepResult(1, (5,))
    assert group.acknowledged_step == 0  # two ranks may still touch the step's blocks
    await ranks.say(2, Acknowledged(1))
    await ranks.say(1, Acknowledged(1))
    await ranks.until_acknowledged(1)
    assert ranks.changes == [(1, None)]  # told once, when the last of them was done


async def test_a_rank_may_be_steps_behind(ranks: Ranks) -> None:
    group = await ranks.start(2)
    for number in (1, 2, 3):
        step = asyncio.create_task(group.execute(plan(number)))
        await ranks.say(0, Executed(StepResult(number, (number,))))
        assert (await step).step == number
    assert group.acknowledged_step == 0
    await ranks.say(1, Acknowledged(1))
    await ranks.say(1, Acknowledged(2))
    await ranks.until_acknowledged(2)
    assert [change[0] for change in ranks.changes] == [1, 2]


async def test_a_result_may_come_before_its_rank_has_finished_the_step(ranks: Ranks) -> None:
    group = await ranks.start(2)
    for number in (1, 2):
        step = asyncio.create_task(group.execute(plan(number)))
        await ranks.say(0, Executed(StepResult(number, (number,), moving=True)))
        assert (await step).token_ids == (number,)
        await ranks.say(1, Acknowledged(number))
    assert group.acknowledged_step == 0  # blocks still move on rank 0
    await ranks.say(0, Acknowledged(1))
    await ranks.until_acknowledged(1)
    await ranks.say(0, Acknowledged(2))
    await ranks.until_acknowledged(2)


@pytest.mark.parametrize(
    ("rank", "message", "said"),
    [
        (0, Executed(StepResult(2, (5,))), "acknowledged step 2 after 0"),
        (0, Executed(StepResult(0, (5,))), "acknowledged step 0 after 0"),
        (0, Acknowledged(1), "not its to send"),
        (0, Executed(StepResult(2, (5,), moving=True)), "answered step 2 after 0"),
        (1, Acknowledged(7), "acknowledged step 7 after 0"),
        (1, Executed(StepResult(1, (5,))), "not its to send"),
        (1, WorkerFailed(1, "out of memory"), "failed in step 1: out of memory"),
        (0, "a text", "not for this channel"),
    ],
)
async def test_what_a_rank_must_not_say_loses_the_group_and_ends_the_step(
    ranks: Ranks, rank: int, message: object, said: str
) -> None:
    group = await ranks.start(2)
    step = asyncio.create_task(group.execute(plan(1)))
    await ranks.plans[rank].get()
    await ranks.say(rank, message)
    with pytest.raises(GroupLost, match=f"rank {rank} .*{said}"):
        await step
    assert group.acknowledged_step == 0
    with pytest.raises(GroupLost, match=said):
        await group.execute(plan(2))
    assert ranks.changes == [(0, group.lost)]


async def test_an_acknowledgement_told_twice_loses_the_group(ranks: Ranks) -> None:
    group = await ranks.start(2)
    step = asyncio.create_task(group.execute(plan(1)))
    await ranks.say(1, Acknowledged(1))
    await ranks.say(1, Acknowledged(1))
    with pytest.raises(GroupLost, match="acknowledged step 1 after 1"):
        await step


async def test_a_rank_that_dies_while_nothing_runs_is_told(ranks: Ranks) -> None:
    group = await ranks.start(2)
    while len(ranks.wires) < 2:
        await asyncio.sleep(0.001)
    ranks.wires[1].abort()
    assert await ranks.until_lost() == "rank 1 closed its connection"
    assert ranks.changes == [(0, group.lost)]


async def test_a_rank_that_dies_in_a_step_ends_the_step(ranks: Ranks) -> None:
    group = await ranks.start(2)
    step = asyncio.create_task(group.execute(plan(1)))
    await ranks.plans[1].get()
    ranks.wires[1].abort()
    with pytest.raises(GroupLost, match="rank 1 closed its connection"):
        await step


async def test_plans_do_not_pile_up_for_a_rank_that_reads_no_more(ranks: Ranks) -> None:
    group = await ranks.start(2)
    ranks.reading[1].clear()
    for number in range(1, 100):
        step = asyncio.create_task(group.execute(plan(number, tokens=1_000_000)))
        await ranks.plans[0].get()
        await ranks.say(0, Executed(StepResult(number, (5,))))
        done, _ = await asyncio.wait({step}, timeout=0.5)
        if not done:
            break
    else:
        pytest.fail("99 MB were posted to a rank that took nothing")
    ranks.wires[1].abort()
    with pytest.raises(GroupLost, match="rank"):
        await step


async def test_a_plan_may_follow_before_the_result_of_the_one_before(ranks: Ranks) -> None:
    group = await ranks.start(2)
    steps = [asyncio.create_task(group.execute(plan(number))) for number in (1, 2)]
    for queue in ranks.plans:
        assert [(await queue.get()).step, (await queue.get()).step] == [1, 2]
    await ranks.say(0, Executed(StepResult(1, (5,))))
    assert await steps[0] == StepResult(1, (5,))
    assert not steps[1].done()
    await ranks.say(0, Executed(StepResult(2, (6,))))
    assert await steps[1] == StepResult(2, (6,))


async def test_a_lost_rank_ends_every_step_under_way(ranks: Ranks) -> None:
    group = await ranks.start(2)
    steps = [asyncio.create_task(group.execute(plan(number))) for number in (1, 2)]
    await ranks.plans[1].get()
    ranks.wires[1].abort()
    for step in steps:
        with pytest.raises(GroupLost, match="rank 1 closed its connection"):
            await step


async def test_the_result_of_a_step_that_was_given_up_harms_nobody(ranks: Ranks) -> None:
    group = await ranks.start(1)
    step = asyncio.create_task(group.execute(plan(1)))
    await ranks.plans[0].get()
    step.cancel()
    await asyncio.gather(step, return_exceptions=True)
    await ranks.say(0, Executed(StepResult(1, (5,))))
    await ranks.until_acknowledged(1)
    assert group.lost is None
    following = asyncio.create_task(group.execute(plan(2)))
    await ranks.say(0, Executed(StepResult(2, (6,))))
    assert (await following).step == 2


async def test_a_rank_that_is_not_there_leaves_no_connection_open() -> None:
    endings: asyncio.Queue[str] = asyncio.Queue()

    async def serve(connection: Connection[ToWorker]) -> None:
        assert await connection.receive() is None
        endings.put_nowait("hung up")

    codec: Codec[ToWorker] = Codec(ToWorker)
    there = await listen(codec, serve)
    gone = await listen(codec, serve)
    await gone.close()
    with pytest.raises(OSError):
        await WorkerGroup.connect([there.endpoint, gone.endpoint])
    assert await endings.get() == "hung up"
    await there.close()


async def test_closing_hangs_up_on_every_rank(ranks: Ranks) -> None:
    group = await ranks.start(2)
    await group.close()
    for _ in range(2):
        await ranks.ended.get()
