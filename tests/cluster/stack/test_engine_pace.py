"""Two steps deep, the second is planned late: who comes before that is in it, who comes later not.

Steps last as long as the test says, by a clock of its own; timers run on the loop's. With steps of
an hour none rings; with steps of a twentieth of a second the test waits until it has rung.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from blockyard.cluster.engine import Engine
from blockyard.cluster.group import GroupLost
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import FinishReason, RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler

HOUR, MOMENT = 3600.0, 0.05

pytestmark = pytest.mark.timeout(60)


class PacedGroup:
    """Steps end when the test says so, and say that they took `seconds`."""

    def __init__(self) -> None:
        self.acknowledged_step = 0
        self.weight_version = ""
        self.lost: str | None = None
        self.plans: list[StepPlan] = []
        self.pending: list[asyncio.Future[StepResult]] = []
        self._callback: Callable[[], None] = lambda: None

    def on_change(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    async def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        self.pending.append(asyncio.get_running_loop().create_future())
        return await self.pending[-1]

    async def close(self) -> None:
        pass

    def end(self, seconds: float) -> None:
        plan = self.plans[len(self.plans) - len(self.pending)]
        self.acknowledged_step = plan.step
        self._callback()
        tokens = (7,) * plan.num_samples
        self.pending.pop(0).set_result(StepResult(plan.step, tokens, compute_seconds=seconds))


class Paced:
    """An engine two steps deep that knows how long steps of one request take."""

    def __init__(self) -> None:
        self.now = 100.0
        self.group = PacedGroup()
        self.successor: PacedGroup | None = None
        self.updates: list[RequestUpdate] = []
        config = SchedulerConfig(
            512, block_size=4, max_running=4, max_step_tokens=32, pipeline_depth=2
        )
        self.scheduler = Scheduler(config, 512)
        self.num_plans = 0
        self._plan = self.scheduler.plan
        self.scheduler.plan = self._counted  # type: ignore[method-assign]  # to count
        self.engine = Engine(
            self.scheduler,
            self.group,
            self.updates.extend,
            repair=self._repair,
            clock=lambda: self.now,
        )
        self.loop = asyncio.create_task(self.engine.run())

    async def _repair(self) -> PacedGroup:
        if self.successor is None:
            raise GroupLost("nobody is left")
        self.group = self.successor
        return self.successor

    def _counted(self, now: float) -> StepPlan | None:
        self.num_plans += 1
        return self._plan(now)

    def submit(self, name: str, max_tokens: int = 400) -> None:
        sampling = SamplingParams(max_tokens=max_tokens)
        self.engine.submit(RequestSpec(name, (1, 2, 3), sampling))

    async def end(self, seconds: float) -> None:
        """The oldest step under way has taken so long."""
        await until(lambda: self.group.pending)
        self.now += seconds
        self.group.end(seconds)
        await settle()

    async def learn(self, seconds: float) -> None:
        """Let one request decode until it is known what that takes; one step is under way then."""
        self.submit("old")
        for _ in range(30):
            await self.end(seconds)
        if len(self.group.pending) > 1:
            await self.end(seconds)

    def handles(self) -> list[int]:
        """Requests of each step under way."""
        return [len(plan.handles) for plan in self.group.plans[-len(self.group.pending) :]]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def until(ready: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not ready():
            await asyncio.sleep(0.001)


@pytest.fixture
async def paced() -> AsyncIterator[Paced]:
    one = Paced()
    yield one
    one.loop.cancel()
    await asyncio.gather(one.loop, return_exceptions=True)
    one.engine.check()


@pytest.fixture
async def timers(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.TimerHandle]:
    """Of this test's loop, but for those that `until` looks again with."""
    made: list[asyncio.TimerHandle] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def noted(delay: float, *rest: Any, **named: Any) -> asyncio.TimerHandle:
        handle = call_later(delay, *rest, **named)
        if delay > 0.002:
            made.append(handle)
        return handle

    monkeypatch.setattr(loop, "call_later", noted)
    return made


async def test_who_comes_before_the_lead_is_in_the_next_step(paced: Paced) -> None:
    await paced.learn(HOUR)
    assert paced.handles() == [1]
    paced.submit("new")
    await settle()
    assert paced.handles() == [1], "the next step is not planned yet"
    await paced.end(HOUR)
    assert paced.handles()[0] == 2


async def test_who_comes_after_the_lead_is_in_the_step_after(paced: Paced) -> None:
    await paced.learn(MOMENT)
    await until(lambda: len(paced.group.pending) == 2)  # nobody but a timer can have done that
    paced.submit("new")
    await settle()
    assert paced.handles() == [1, 1]
    await paced.end(MOMENT)
    await until(lambda: len(paced.group.pending) == 2)
    assert paced.handles() == [1, 2]


async def test_a_result_before_the_lead_is_followed_by_the_next_step_at_once(paced: Paced) -> None:
    await paced.learn(HOUR)
    steps = len(paced.group.plans)
    await paced.end(1.0)
    assert len(paced.group.plans) == steps + 1 and paced.handles() == [1]


async def test_when_nothing_was_there_to_plan_in_time_a_newcomer_is_planned_at_once(
    paced: Paced,
) -> None:
    for number in range(20):
        paced.submit(f"r{number}", max_tokens=1)
        await paced.end(MOMENT)
    paced.submit("last", max_tokens=1)
    await settle()
    assert paced.handles() == [1]
    asked = paced.num_plans
    await until(lambda: paced.num_plans > asked)
    await settle()
    assert paced.num_plans == asked + 1, "it is asked once, and not again and again"
    paced.submit("new", max_tokens=1)
    await settle()
    assert paced.handles() == [1, 1]


async def test_a_step_has_one_timer_whatever_comes_meanwhile(
    paced: Paced, timers: list[asyncio.TimerHandle]
) -> None:
    await paced.learn(HOUR)
    before = len(timers)
    assert [timer.cancelled() for timer in timers] == [True] * (before - 1) + [False]
    for number in range(3):
        paced.submit(f"new{number}")
        await settle()
    paced.engine.abort("new1")
    await settle()
    assert len(timers) == before
    await paced.end(HOUR)
    assert timers[before - 1].cancelled()


async def test_no_timer_outlives_the_engine(
    paced: Paced, timers: list[asyncio.TimerHandle]
) -> None:
    await paced.learn(HOUR)
    assert not timers[-1].cancelled()
    paced.loop.cancel()
    await asyncio.gather(paced.loop, return_exceptions=True)
    assert all(timer.cancelled() for timer in timers)
    assert paced.engine.num_under_way == 0


async def test_a_loss_before_the_lead_is_seen_at_once(
    paced: Paced, timers: list[asyncio.TimerHandle]
) -> None:
    await paced.learn(HOUR)
    paced.group.pending[0].set_exception(GroupLost("rank 0 melted"))
    await paced.loop
    assert paced.engine.lost == "rank 0 melted"
    assert all(timer.cancelled() for timer in timers)


async def test_a_group_formed_anew_is_waited_for_by_its_own_steps(paced: Paced) -> None:
    await paced.learn(HOUR)
    lost, paced.successor = paced.group, PacedGroup()
    lost.pending[0].set_exception(GroupLost("rank 0 melted"))
    await until(lambda: paced.successor is not None and paced.successor.plans)
    for _ in range(4):  # its tokens are computed again, then it decodes
        await paced.end(HOUR)
    if len(paced.group.pending) > 1:
        await paced.end(HOUR)
    assert paced.handles() == [1]
    paced.now += HOUR / 2
    paced.submit("new")
    await settle()
    assert paced.handles() == [1]
    await paced.end(HOUR / 2)
    assert paced.handles()[0] == 2


async def test_a_successor_takes_over_after_the_step_and_nothing_is_planned_before(
    paced: Paced, timers: list[asyncio.TimerHandle]
) -> None:
    await paced.learn(MOMENT)
    steps, successor = len(paced.group.plans), PacedGroup()

    async def make() -> PacedGroup:
        assert paced.engine.num_under_way == 0
        return successor

    asked = asyncio.create_task(paced.engine.succession.ask(make))
    loop = asyncio.get_running_loop()
    await until(lambda: loop.time() > timers[-1].when())
    await settle()
    assert len(paced.group.plans) == steps and paced.handles() == [1]
    await paced.end(MOMENT)
    await asked
    await until(lambda: successor.plans)
    assert len(paced.group.plans) == steps


async def test_a_drain_ends_what_has_begun(paced: Paced) -> None:
    await paced.learn(HOUR)
    paced.submit("new", max_tokens=2)
    paced.engine.start_drain()
    paced.engine.abort("old")
    while paced.engine.num_requests:
        await paced.end(HOUR)
    await paced.engine.wait_idle()
    assert [u.finish_reason for u in paced.updates if u.request_id == "new"][-1] is (
        FinishReason.LENGTH
    )
    while paced.group.pending:
        await paced.end(HOUR)
