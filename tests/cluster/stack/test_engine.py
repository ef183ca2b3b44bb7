"""The step loop against a group that does exactly what a test tells it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from blockyard.cluster.engine import Engine
from blockyard.cluster.group import GroupLost
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import (
    FinishReason,
    RefusalCode,
    RequestRefused,
    RequestSpec,
    RequestUpdate,
)
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler


class CountingScheduler(Scheduler):
    """Counts how often it is asked for a plan."""

    num_plans = 0

    def plan(self, now: float) -> StepPlan | None:
        self.num_plans += 1
        return super().plan(now)


class ScriptedGroup:
    """Steps end when the test says so, and are acknowledged when it says so."""

    def __init__(self) -> None:
        self.acknowledged_step = 0
        self.weight_version = ""
        self.lost: str | None = None
        self.plans: asyncio.Queue[StepPlan] = asyncio.Queue()
        self.answers: asyncio.Queue[StepResult | Exception] = asyncio.Queue()
        self._callback: Callable[[], None] = lambda: None

    def on_change(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    async def execute(self, plan: StepPlan) -> StepResult:
        self.plans.put_nowait(plan)
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        pass

    def acknowledge(self, step: int) -> None:
        self.acknowledged_step = step
        self._callback()

    def lose(self, reason: str) -> None:
        self.lost = reason
        self._callback()

    async def finish_step(self, acknowledge: bool = True) -> StepPlan:
        """Take the next plan and answer it with token 7 for everyone."""
        plan = await self.plans.get()
        if acknowledge:
            self.acknowledge(plan.step)
        self.answers.put_nowait(StepResult(plan.step, (7,) * sum(plan.samples)))
        return plan


@dataclass
class Running:
    """An engine whose loop runs."""

    group: ScriptedGroup = field(default_factory=ScriptedGroup)
    updates: list[RequestUpdate] = field(default_factory=list)
    changes: int = 0
    losses: int = 0
    now: float = 100.0
    num_blocks: int = 64

    def __post_init__(self) -> None:
        config = SchedulerConfig(64, block_size=16, max_running=4, max_step_tokens=32)
        self.scheduler = CountingScheduler(config, self.num_blocks)
        self.engine = Engine(
            self.scheduler,
            self.group,
            self.updates.extend,
            self._lose,
            self._change,
            clock=lambda: self.now,
        )
        self.loop = asyncio.create_task(self.engine.run())

    def submit(self, request_id: str, max_tokens: int = 1) -> None:
        """A request of three tokens, which stays inside one block."""
        sampling = SamplingParams(max_tokens=max_tokens)
        self.engine.submit(RequestSpec(request_id, (1, 2, 3), sampling))

    def _change(self) -> None:
        self.changes += 1

    def _lose(self) -> None:
        self.losses += 1


@pytest.fixture
async def running(request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    one = Running(num_blocks=getattr(request, "param", 64))
    yield one
    one.loop.cancel()
    await asyncio.gather(one.loop, return_exceptions=True)
    one.engine.check()


# Nothing here waits for more than a few turns of the event loop.
pytestmark = pytest.mark.timeout(30)


async def settle() -> None:
    """Let everything that can happen by itself happen."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_request_wakes_the_sleeping_loop_and_its_end_lets_it_sleep(
    running: Running,
) -> None:
    await settle()
    running.submit("a", max_tokens=2)
    await running.group.finish_step()
    await running.group.finish_step()
    await running.engine.wait_idle()
    assert [update.finish_reason for update in running.updates] == [None, FinishReason.LENGTH]
    plans = running.scheduler.num_plans
    await settle()
    assert running.scheduler.num_plans == plans


@pytest.mark.parametrize("running", [1], indirect=True)
async def test_a_block_that_a_slow_rank_may_still_touch_is_waited_for(running: Running) -> None:
    running.submit("first")
    running.submit("second")  # there is one block
    await running.group.finish_step(acknowledge=False)
    await settle()
    ledger = running.engine.ledger()
    assert (ledger.blocks.fenced, ledger.requests.waiting) == (1, 1)
    assert running.group.plans.empty()
    # The loop sleeps meanwhile, and the acknowledgement is what wakes it.
    plans = running.scheduler.num_plans
    await settle()
    assert running.scheduler.num_plans == plans
    running.group.acknowledge(1)
    plan = await running.group.finish_step()
    assert plan.step == 2
    await running.engine.wait_idle()
    assert running.engine.ledger().stalled_steps == 0


async def test_an_acknowledgement_during_a_later_step_opens_the_fence(running: Running) -> None:
    running.submit("long", max_tokens=3)
    running.submit("short")
    await running.group.finish_step(acknowledge=False)  # ends "short"
    await running.group.plans.get()
    assert running.engine.ledger().blocks.fenced == 1
    running.group.acknowledge(1)
    assert running.engine.ledger().blocks.fenced == 0
    running.group.answers.put_nowait(StepResult(2, (7,)))
    await running.group.finish_step(acknowledge=False)  # ends "long"
    await running.engine.wait_idle()
    assert running.engine.ledger().blocks.fenced == 1
    running.group.acknowledge(3)
    assert running.engine.ledger().blocks.fenced == 0


async def test_idle_is_told_when_the_last_request_is_aborted(running: Running) -> None:
    running.submit("a", max_tokens=9)
    await running.group.plans.get()
    waiting = asyncio.create_task(running.engine.wait_idle())
    await settle()
    assert not waiting.done()
    assert running.engine.abort("a")
    assert not running.engine.abort("a")
    await waiting
    running.group.answers.put_nowait(StepResult(1, (7,)))
    await settle()
    assert running.updates == []


async def test_a_request_that_comes_during_a_step_keeps_the_engine_busy(running: Running) -> None:
    running.submit("a")
    await running.group.plans.get()
    running.submit("b")
    running.group.acknowledge(1)
    running.group.answers.put_nowait(StepResult(1, (7,)))
    waiting = asyncio.create_task(running.engine.wait_idle())
    await settle()
    assert not waiting.done()
    await running.group.finish_step()
    await waiting


async def test_a_group_lost_in_a_step_ends_the_loop(running: Running) -> None:
    running.submit("a")
    running.group.answers.put_nowait(GroupLost("rank 0 melted"))
    await running.loop
    assert running.engine.lost == "rank 0 melted"
    assert running.losses == 1
    await running.engine.wait_idle()


async def test_a_group_lost_while_idle_is_noticed_at_once(running: Running) -> None:
    await settle()
    running.group.lose("rank 1 closed its connection")
    await running.loop
    assert running.engine.lost == "rank 1 closed its connection"
    assert running.losses == 1
    with pytest.raises(RequestRefused) as refused:
        running.submit("late")
    assert refused.value.code is RefusalCode.UNAVAILABLE
    assert "rank" not in refused.value.message


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(StepResult(1, ()), id="too few tokens"),
        pytest.param(StepResult(2, (7,)), id="another step"),
        pytest.param(RuntimeError("nobody expected this"), id="a fault of the group object"),
    ],
)
async def test_what_breaks_the_loop_is_a_loss_and_not_a_hang(
    running: Running, answer: StepResult | Exception
) -> None:
    running.submit("a")
    running.group.answers.put_nowait(answer)
    await running.loop
    assert running.engine.lost is not None and "the step loop failed" in running.engine.lost
    assert running.losses == 1
    await running.engine.wait_idle()


async def test_time_without_a_step_counts_only_while_work_waits(running: Running) -> None:
    running.now += 1000
    assert running.engine.stalled_seconds() == 0
    running.submit("a", max_tokens=2)
    assert running.engine.stalled_seconds() == 0
    running.now += 5
    assert running.engine.stalled_seconds() == 5
    running.submit("b")  # a newcomer does not hide that nothing moves
    assert running.engine.stalled_seconds() == 5
    await running.group.finish_step()
    await running.group.plans.get()
    running.now += 2
    assert running.engine.stalled_seconds() == 2
    running.engine.abort("a")
    running.engine.abort("b")
    assert running.engine.stalled_seconds() == 0


async def test_every_change_of_the_books_is_told(running: Running) -> None:
    def changed() -> int:
        count, running.changes = running.changes, 0
        return count

    running.submit("a", max_tokens=2)
    assert changed()
    await running.group.finish_step(acknowledge=False)
    await running.group.plans.get()
    assert changed()
    running.engine.abort("a")
    assert changed()
    running.group.answers.put_nowait(StepResult(2, (7,)))
    await settle()
    assert changed()
    running.group.acknowledge(2)  # opens the fence while nothing runs
    assert changed()
    running.engine.start_drain()
    assert changed()
    running.group.lose("gone")
    await running.loop
    assert changed()


async def test_a_step_without_the_loop_says_what_went_wrong(running: Running) -> None:
    running.loop.cancel()
    await asyncio.gather(running.loop, return_exceptions=True)
    assert not await running.engine.step()
    running.submit("a")
    running.group.answers.put_nowait(GroupLost("rank 0 melted"))
    with pytest.raises(GroupLost, match="melted"):
        await running.engine.step()
