from collections.abc import Callable
from typing import Any

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.block_table import BlockTable
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.draft import PlanDraft
from blockyard.scheduler.packing import StepPacker
from blockyard.scheduler.request import Request, RequestSpec
from blockyard.scheduler.sampling import SamplingParams

Make = Callable[..., Any]


def test_a_newcomer_leaves_others_a_block_to_grow_into(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=10, max_step_tokens=64)
    rig.submit("running", prompt_of(20), max_tokens=4)  # 5 blocks, and in the next step 6
    rig.step()
    rig.submit("tight", prompt_of(13), max_tokens=4)  # 4 blocks: it would take the last one
    rig.step()
    assert rig.started == ["running"]
    rig.submit("passes", prompt_of(9), max_tokens=4)
    rig.step()
    assert rig.started == ["running", "passes"]
    rig.finish()
    assert rig.scheduler.ledger().preemptions == 0


def test_alone_a_request_may_take_the_whole_pool(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=10, max_step_tokens=64)
    rig.submit("all", prompt_of(40), max_tokens=1)
    rig.finish()


def test_an_unfinished_prompt_keeps_newcomers_out(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=12, max_step_tokens=16)
    rig.submit("long", prompt_of(40), max_tokens=2)
    rig.submit("short", prompt_of(12), max_tokens=2)
    rig.step()
    rig.step()
    # 32 tokens are computed in 8 blocks; the 4 free ones would hold the short one.
    assert rig.started == ["long"]
    rig.finish()
    assert rig.scheduler.ledger().preemptions == 0


def test_nobody_yields_to_what_still_would_not_fit(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=12, max_step_tokens=64)
    rig.submit("high", prompt_of(24), max_tokens=20, priority=1)
    rig.submit("low", prompt_of(8), max_tokens=6)
    rig.step()
    rig.submit("big", prompt_of(36), max_tokens=2, priority=1)
    while "low" in rig.live():
        rig.step()
    assert rig.scheduler.ledger().preemptions == 0
    rig.finish()


def test_nobody_yields_for_blocks_that_another_prompt_needs(
    make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=12, max_running=2, max_step_tokens=10)
    rig.submit("low", prompt_of(8), max_tokens=4)
    rig.step()
    rig.submit("long", prompt_of(36), max_tokens=2, priority=1)
    rig.step()
    # 7 blocks are free and 2 are the low one's, but 6 or 7 of them go to the rest of the prompt.
    rig.submit("big", prompt_of(32), max_tokens=2, priority=1)
    rig.step()
    assert rig.scheduler.ledger().preemptions == 0
    rig.finish()


def test_a_lower_priority_does_not_pass_a_higher_one(make_rig: Make, prompt_of: Make) -> None:
    rig = make_rig(num_blocks=32, max_step_tokens=64)
    rig.submit("first", prompt_of(76), max_tokens=5, priority=1)
    rig.step()
    rig.step()
    rig.submit("big", prompt_of(76, 1), max_tokens=5, priority=1)
    rig.submit("small", prompt_of(5), max_tokens=5)
    rig.step()
    assert rig.started == ["first"]
    rig.submit("small but equal", prompt_of(5), max_tokens=5, priority=1)
    rig.step()
    assert rig.started == ["first", "small but equal"]
    rig.finish()


def test_only_so_many_big_requests_are_looked_behind(make_rig: Make, prompt_of: Make) -> None:
    for num_big, passes in ((4, True), (5, False)):
        rig = make_rig(num_blocks=32, max_step_tokens=200, max_running=16)
        rig.submit("first", prompt_of(76), max_tokens=5)
        rig.step()
        for index in range(num_big):
            rig.submit(f"big {index}", prompt_of(76, 1 + index), max_tokens=5)
        rig.submit("small", prompt_of(5), max_tokens=5)
        rig.step()
        assert ("small" in rig.started) is passes
        rig.finish()


def test_a_place_lost_before_the_first_token_is_no_preemption(
    make_rig: Make, prompt_of: Make
) -> None:
    rig = make_rig(num_blocks=3, max_running=1)
    rig.submit("low", prompt_of(11), max_tokens=2)
    assert rig.plan()
    rig.commit()
    rig.submit("high", prompt_of(4), max_tokens=2, priority=1)
    # The low one's blocks are fenced: the high one has its place, but no block yet.
    assert not rig.plan()
    rig.submit("highest", prompt_of(4), max_tokens=2, priority=2)
    assert not rig.plan()
    rig.scheduler.check()
    ledger = rig.scheduler.ledger()
    assert (ledger.preemptions, ledger.requests.parked, ledger.requests.waiting) == (1, 1, 1)
    rig.finish()
    assert rig.ended == ["highest", "high", "low"]
    assert rig.scheduler.ledger().preemptions == 1


def test_behind_a_request_that_waits_for_a_fence_nobody_gets_blocks() -> None:
    batch = Batch(SchedulerConfig(max_context_tokens=64, block_size=4, max_running=8), 3)
    gone = batch.pool.allocate(1) or ()
    first, second, third = (running(batch, index, known) for index, known in enumerate((5, 12, 5)))
    hold(batch, first)
    hold(batch, third)
    batch.pool.release(gone, fence_step=7)
    draft = PlanDraft(8)
    StepPacker(batch, draft, now=0.0).pack()
    # The second could have the third's block, but that would be the first's before it.
    assert batch.running == [first, second, third]
    assert draft.rows == []
    batch.pool.acknowledge(7)
    StepPacker(batch, draft, now=0.0).pack()
    assert draft.rows[0] is first


def running(batch: Batch, sequence: int, num_known: int) -> Request:
    request = Request(
        spec=RequestSpec(f"r{sequence}", (1,) * num_known, SamplingParams()),
        sequence=sequence,
        max_tokens=2,
        table=BlockTable(4),
        arrived_at=0.0,
        tokens=[1] * num_known,
    )
    batch.start(request)
    return request


def hold(batch: Batch, request: Request) -> None:
    """Let a request have computed one block of tokens."""
    request.handle = batch.notices.new_handle()
    request.table.extend(batch.pool.allocate(1) or ())
    request.num_computed = 4
    batch.holdings.promise(4)
    batch.holdings.fulfil(4)
