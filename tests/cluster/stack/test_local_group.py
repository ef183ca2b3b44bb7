import asyncio
from collections.abc import AsyncIterator

import pytest

from blockyard.cluster.group import GroupLost
from blockyard.cluster.local_group import LocalGroup
from blockyard.scheduler.plan import Admission, BlockGrant, StepPlan, StepResult
from blockyard.scheduler.sampling import SamplingParams
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
