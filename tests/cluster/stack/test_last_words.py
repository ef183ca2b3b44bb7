"""A failed rank is heard, however many plans were still on their way to it."""

import threading

import pytest

from blockyard.cluster.messages import Execute, WorkerFailed, WorkerToEngine
from blockyard.cluster.wire import Codec, connect
from blockyard.cluster.worker_host import WorkerHost
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.workers.config import WorkerProfile

PLAN = StepPlan(1, (), (), (), (), (), (), (), ())


class FailingRank:
    """Fails in its first step, but not before more has been sent to it."""

    def __init__(self) -> None:
        self.sent_more = threading.Event()

    def load(self) -> WorkerProfile:
        return WorkerProfile(7, 1, 2, 3, "cpu", "int64")

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        pass

    def execute(self, plan: StepPlan) -> StepResult:
        assert self.sent_more.wait(10)
        raise RuntimeError("the device fell off the bus")


@pytest.mark.timeout(30)
async def test_the_reason_arrives_although_plans_were_left_unread() -> None:
    rank = FailingRank()
    host = WorkerHost(lambda: rank, 1)
    host.load()
    host.allocate(1)
    codec: Codec[WorkerToEngine] = Codec(WorkerToEngine)
    engine = await connect(host.listen("127.0.0.1"), codec)
    for _ in range(3):
        engine.post(Execute(PLAN))
    rank.sent_more.set()
    # The rank's thread is free again when it has closed the connection. The event loop is held
    # up meanwhile, as it is by other ranks' news, so nothing has been read yet.
    host._thread.submit(lambda: None).result(20)
    engine.post(Execute(PLAN))
    assert await engine.receive() == WorkerFailed(1, "RuntimeError: the device fell off the bus")
    await engine.close()
    host.close()
