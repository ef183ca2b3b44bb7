"""The step loop with two steps under way, against ranks in this process and over the wire."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from blockyard.cluster.engine import Engine
from blockyard.cluster.group import GroupLost
from blockyard.cluster.local_group import LocalGroup
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import PLACEHOLDER, StepPlan, StepResult
from blockyard.scheduler.request import FinishReason, RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig
from blockyard.workers.fake import WitnessWorker, witness_generate

VOCAB = 251

pytestmark = pytest.mark.timeout(60)


class HandGroup:
    """Steps end when the test says so, in the order in which they came."""

    def __init__(self) -> None:
        self.acknowledged_step = 0
        self.lost: str | None = None
        self.plans: list[StepPlan] = []
        self._pending: list[asyncio.Future[StepResult]] = []
        self._callback: Callable[[], None] = lambda: None

    def on_change(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    async def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        self._pending.append(asyncio.get_running_loop().create_future())
        return await self._pending[-1]

    async def close(self) -> None:
        pass

    async def end(self, *token_ids: int) -> None:
        """The oldest step ends with these tokens; then everything happens that can."""
        done = len(self.plans) - sum(not pending.done() for pending in self._pending)
        self.acknowledged_step = self.plans[done].step
        self._callback()
        self._pending[done].set_result(StepResult(self.acknowledged_step, token_ids))
        await settle()

    async def fail(self) -> None:
        for pending in self._pending:
            if not pending.done():
                pending.set_exception(GroupLost("rank 0 melted"))
        await settle()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Running:
    """An engine whose loop runs, two steps deep."""

    def __init__(self, group: Any, num_blocks: int = 64, block_size: int = 4) -> None:
        config = SchedulerConfig(
            128, block_size=block_size, max_running=4, max_step_tokens=16, pipeline_depth=2
        )
        self.group = group
        self.updates: list[RequestUpdate] = []
        self.scheduler = Scheduler(config, num_blocks)
        self.engine = Engine(self.scheduler, group, self.updates.extend)
        self.loop = asyncio.create_task(self.engine.run())

    def submit(self, name: str, max_tokens: int, prompt: tuple[int, ...] = (1, 2, 3)) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=(0,))
        self.engine.submit(RequestSpec(name, prompt, sampling))

    def told(self, name: str) -> list[int]:
        return [t for u in self.updates if u.request_id == name for t in u.token_ids]

    def reasons(self) -> dict[str, FinishReason]:
        return {u.request_id: u.finish_reason for u in self.updates if u.finish_reason}


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    one = Running(HandGroup())
    yield one
    one.loop.cancel()
    await asyncio.gather(one.loop, return_exceptions=True)
    one.engine.check()


async def test_the_next_step_is_under_way_before_the_one_before_has_ended(
    running: Running,
) -> None:
    running.submit("a", max_tokens=9)
    await settle()
    first, second = running.group.plans
    assert (first.token_ids, second.token_ids) == ((1, 2, 3), (PLACEHOLDER,))
    assert second.starts == (3,)
    await running.group.end(7)
    assert running.told("a") == [7]
    assert [plan.step for plan in running.group.plans] == [1, 2, 3]


async def test_a_newcomer_is_planned_while_a_step_runs(running: Running) -> None:
    running.submit("a", max_tokens=1)
    await settle()
    assert len(running.group.plans) == 1  # its one token is under way
    running.submit("b", max_tokens=1)
    await settle()
    assert [plan.token_ids for plan in running.group.plans] == [(1, 2, 3)] * 2
    await running.group.end(5)
    await running.group.end(6)
    assert (running.told("a"), running.told("b")) == ([5], [6])
    await running.engine.wait_idle()


async def test_a_stop_seen_late_ends_once_and_its_last_row_is_dropped(running: Running) -> None:
    running.submit("a", max_tokens=9)
    await settle()
    await running.group.end(0)  # its stop token; one more of its steps is under way
    assert running.told("a") == [0]
    assert running.reasons() == {"a": FinishReason.STOP}
    running.submit("b", max_tokens=1)
    await settle()
    await running.group.end(77)
    assert running.told("a") == [0]
    await running.group.end(5)
    await running.engine.wait_idle()
    assert running.told("b") == [5]
    assert running.engine.ledger().blocks.active == 0


async def test_after_an_abort_nothing_more_is_told(running: Running) -> None:
    running.submit("a", max_tokens=9)
    running.submit("b", max_tokens=9)
    await settle()
    assert running.engine.abort("a")
    running.engine.check()
    await running.group.end(5, 6)
    await running.group.end(7, 8)
    assert (running.told("a"), running.told("b")) == ([], [6, 8])
    assert all(update.request_id == "b" for update in running.updates)


async def test_a_lost_group_leaves_no_step_behind(running: Running) -> None:
    running.submit("a", max_tokens=9)
    await settle()
    await running.group.fail()
    await running.loop
    assert running.engine.lost == "rank 0 melted"
    await running.engine.wait_idle()


async def test_answers_are_those_of_one_step_at_a_time() -> None:
    """Over a real executor, with preemptions, stops and late aborts."""
    num_blocks = 12
    group = LocalGroup(WitnessWorker(WorkerConfig("", 128, block_size=4), VOCAB))
    await group.load()
    one = Running(group, num_blocks)
    try:
        prompts = {f"r{i}": tuple(range(i, i + 5 + i % 4)) for i in range(12)}
        for name, prompt in prompts.items():
            one.submit(name, 20, prompt)
        while len(one.told("r1")) < 3:
            await asyncio.sleep(0.001)
        one.engine.abort("r1")
        heard = list(one.told("r1"))
        await one.engine.wait_idle()
        assert one.told("r1") == heard
        for name, prompt in prompts.items():
            if name != "r1":
                assert one.told(name) == witness_generate(prompt, 20, VOCAB, (0,)), name
        one.engine.check()
        ledger = one.engine.ledger()
        assert ledger.preemptions and not ledger.stalled_steps
    finally:
        one.loop.cancel()
        await asyncio.gather(one.loop, return_exceptions=True)
        await group.close()
