from collections.abc import AsyncIterator

import pytest

from blockyard.cluster.engine import GroupLost
from blockyard.cluster.local_group import LocalGroup
from blockyard.scheduler.plan import Admission, BlockGrant, StepPlan
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
