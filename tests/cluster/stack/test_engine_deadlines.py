"""A request whose deadline cannot be met any more ends although nothing was computed for it."""

from collections.abc import Callable

from blockyard.cluster.engine import Engine
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import FinishReason, RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler


class InstantGroup:
    """Answers token 7 for everyone, at once."""

    acknowledged_step = 0
    weight_version = ""
    lost: str | None = None

    def on_change(self, callback: Callable[[], None]) -> None:
        pass

    async def execute(self, plan: StepPlan) -> StepResult:
        self.acknowledged_step = plan.step
        return StepResult(plan.step, (7,) * plan.num_samples)

    async def close(self) -> None:
        pass


async def test_the_client_is_told_before_the_next_step() -> None:
    now = 100.0
    told: list[RequestUpdate] = []
    config = SchedulerConfig(64, block_size=16, max_running=1, max_step_tokens=32)
    scheduler = Scheduler(config, 8)
    engine = Engine(scheduler, InstantGroup(), told.extend, clock=lambda: now)
    engine.submit(RequestSpec("runs", (1, 2, 3), SamplingParams(max_tokens=20)))
    waits = RequestSpec("waits", (4, 5), SamplingParams(max_tokens=20), deadline_seconds=5.0)
    engine.submit(waits)
    assert await engine.step()
    assert [update.request_id for update in told] == ["runs"]
    now = 106.0
    assert await engine.step()
    ended = {update.request_id: update for update in told if update.finish_reason is not None}
    assert ended["waits"].finish_reason is FinishReason.DEADLINE
    assert "deadline" in ended["waits"].error
    assert engine.num_requests == 1
    engine.check()
