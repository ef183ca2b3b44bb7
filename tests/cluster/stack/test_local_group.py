import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from blockyard.cluster.group import GroupLost
from blockyard.cluster.local_group import LocalGroup
from blockyard.scheduler.plan import Admission, BlockGrant, StepPlan, StepResult
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.adapter_description import AdapterDescription
from blockyard.workers.config import WorkerConfig
from blockyard.workers.fake import WitnessWorker, witness_generate

VOCAB = 251
PROMPT = (5, 6, 7)


def first_plan(step: int = 1) -> StepPlan:
    return StepPlan(
        step=step,
        forgotten=(),
        admitted=(Admission(1, SamplingParams(), len(PROMPT)),),
        grants=(BlockGrant(1, (0,)),),
        handles=(1,),
        starts=(0,),
        counts=(len(PROMPT),),
        samples=(True,),
        token_ids=PROMPT,
    )


@pytest.fixture
async def group() -> AsyncIterator[LocalGroup]:
    made = LocalGroup(WitnessWorker(WorkerConfig("", 64, block_size=4, num_blocks=3), VOCAB))
    yield made
    await made.close()


async def test_a_step_is_run_and_acknowledged(group: LocalGroup) -> None:
    acknowledged: list[int] = []
    group.on_change(lambda: acknowledged.append(group.acknowledged_step))
    assert (await group.load()).max_blocks == 3
    result = await group.execute(first_plan())
    assert list(result.token_ids) == witness_generate(PROMPT, 1, VOCAB)
    assert acknowledged == [1]
    assert group.lost is None


async def test_an_executor_that_failed_is_not_asked_again(group: LocalGroup) -> None:
    changes: list[str | None] = []
    group.on_change(lambda: changes.append(group.lost))
    await group.load()
    with pytest.raises(GroupLost, match=r"failed in step 5.*came after"):
        await group.execute(first_plan(step=5))
    assert changes == [group.lost] != [None]
    with pytest.raises(GroupLost, match="failed in step 5"):
        await group.execute(first_plan())  # which by itself would work
    assert group.acknowledged_step == 0


async def test_steps_run_in_order_and_none_after_one_that_failed(group: LocalGroup) -> None:
    changes: list[str | None] = []
    group.on_change(lambda: changes.append(group.lost))
    await group.load()
    good, bad, behind = (first_plan(), first_plan(step=5), first_plan(step=2))
    results = await asyncio.gather(*map(group.execute, (good, bad, behind)), return_exceptions=True)
    assert isinstance(results[0], StepResult) and results[0].step == 1
    assert [str(result) for result in results[1:]] == [group.lost] * 2
    assert "failed in step 5" in str(group.lost)
    assert group.acknowledged_step == 1


class SlowLoader(WitnessWorker):
    """Loads adapters when it is told to."""

    def __init__(self) -> None:
        super().__init__(WorkerConfig("", 64, block_size=4, num_blocks=3), VOCAB)
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.held: set[str] = set()

    def load_adapter(self, adapter: AdapterDescription) -> None:
        self.begun.set()
        assert self.may_end.wait(30)
        self.held.add(adapter.adapter_id)

    def drop_adapter(self, adapter_id: str) -> None:
        self.held.remove(adapter_id)


async def test_a_load_that_is_cancelled_leaves_nothing_behind() -> None:
    worker = SlowLoader()
    group = LocalGroup(worker)
    await group.load()
    loading = asyncio.create_task(group.load_adapter(AdapterDescription("a", "/a", "1", 4)))
    assert await asyncio.to_thread(worker.begun.wait, 30)
    for _ in range(2):
        loading.cancel()
        await asyncio.sleep(0)
    assert not loading.done()  # the thread cannot be stopped, and nobody else may begin
    worker.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert worker.held == set() and group.adapters == {}
    await group.load_adapter(AdapterDescription("a", "/a", "1", 4))
    assert worker.held == {"a@1"}
    await group.close()
