"""What goes to a rank and comes back survives the wire with every column."""

from blockyard.cluster.messages import Execute, Executed, ToWorker, WorkerToEngine
from blockyard.cluster.wire import Codec
from blockyard.scheduler.plan import (
    Admission,
    BlockCopy,
    BlockGrant,
    Fork,
    Replacement,
    RowError,
    StepPlan,
    StepResult,
)
from blockyard.scheduler.sampling import SamplingParams

HEADER_BYTES = 4


def test_every_column_of_a_plan_arrives() -> None:
    plan = StepPlan(
        step=7,
        forgotten=(1,),
        admitted=(Admission(4, SamplingParams(seed=2**64 - 1, choice=3), 9),),
        grants=(BlockGrant(4, (5, 6)),),
        handles=(4,),
        starts=(0,),
        counts=(2,),
        samples=(True,),
        token_ids=(11, 12),
        forks=(Fork(4, 5, SamplingParams(choice=1), 9),),
        replacements=(Replacement(4, 1, 8),),
        swap_outs=(BlockCopy(1, 0), BlockCopy(2, 3)),
        copies=(BlockCopy(5, 6),),
        swap_ins=(BlockCopy(3, 2),),
    )
    codec: Codec[ToWorker] = Codec(ToWorker)
    assert codec.decode(codec.encode(Execute(plan))[HEADER_BYTES:]).plan == plan


def test_a_result_arrives_whole() -> None:
    result = StepResult(7, (1, 2), (RowError(4, "no"),), compute_seconds=0.5, copy_seconds=0.25)
    codec: Codec[WorkerToEngine] = Codec(WorkerToEngine)
    assert codec.decode(codec.encode(Executed(result))[HEADER_BYTES:]) == Executed(result)
