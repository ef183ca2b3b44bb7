from collections.abc import Sequence
from dataclasses import replace

import pytest

from blockyard.scheduler.block_table import BlockTable
from blockyard.scheduler.cost_model import CostModel
from blockyard.scheduler.explain import BlockHolder, SchedulerView, WaitReason, explain
from blockyard.scheduler.request import Request, RequestSpec, RequestState
from blockyard.scheduler.sampling import SamplingParams

RATES = CostModel(1, prefill_tokens_per_second=1000.0, link_bytes_per_second=1.0, step_seconds=0.1)
WAITING, RUNNING, PARKED = RequestState.WAITING, RequestState.RUNNING, RequestState.PARKED


def request(
    sequence: int, state: RequestState, tokens: int, blocks: int = 0, left: int = 10
) -> Request:
    """One with `tokens` known ones in blocks of 4; a running one advanced in step 7."""
    running = state is RUNNING
    made = Request(
        spec=RequestSpec(f"r{sequence}", (1,) * tokens, SamplingParams()),
        sequence=sequence,
        max_tokens=left,
        table=BlockTable(4, list(range(blocks))),
        arrived_at=0.0,
        tokens=[1] * tokens,
        state=state,
        handle=sequence if running else None,
    )
    if running:
        made.num_computed, made.last_step = tokens - 1, 7
    return made


def view(
    running: Sequence[Request] = (), queued: Sequence[Request] = (), available: int = 0
) -> SchedulerView:
    return SchedulerView(
        step=7,
        running=running,
        queued=queued,
        prefix_owners={},
        max_running=4,
        num_available=available,
        num_fenced=0,
        watermark=0,
        rates=RATES,
    )


def test_one_that_advances_waits_for_nothing_but_its_next_step() -> None:
    first, second = request(0, RUNNING, 8, 2), request(1, RUNNING, 9, 3)
    told = explain(view([first, second]), second)
    assert (told.reason, told.place, told.state) == (WaitReason.NOTHING, 1, RUNNING)
    assert told.estimate_seconds == pytest.approx(0.1)


def test_blocks_short_and_who_holds_them() -> None:
    running = [request(0, RUNNING, 40, 10, left=30), request(1, RUNNING, 80, 20, left=5)]
    newcomer = request(2, WAITING, 24)
    told = explain(view(running, [newcomer], available=2), newcomer)
    assert told.reason is WaitReason.BLOCKS
    assert told.blocks_short == 4
    assert told.holders == (BlockHolder("r1", 20), BlockHolder("r0", 10))
    # r1 ends in 5 steps; then a step of its own, and 24 tokens to prefill.
    assert told.estimate_seconds == pytest.approx(0.024 + 6 * 0.1)


def test_the_watermark_counts_as_short_while_somebody_runs() -> None:
    newcomer = request(1, WAITING, 8)
    running = [request(0, RUNNING, 8, 2)]
    held = replace(view(running, [newcomer], available=3), watermark=2)
    assert explain(held, newcomer).blocks_short == 1
    assert explain(replace(held, running=[]), newcomer).reason is WaitReason.BUDGET


def test_blocks_behind_a_fence_come_by_themselves() -> None:
    newcomer = request(1, WAITING, 24)
    fenced = replace(view([request(0, RUNNING, 8, 2)], [newcomer], available=2), num_fenced=9)
    told = explain(fenced, newcomer)
    assert (told.reason, told.blocks_short) == (WaitReason.FENCE, 4)
    assert told.estimate_seconds == pytest.approx(0.024 + 0.1)


def test_a_full_batch() -> None:
    running = [request(i, RUNNING, 8, 2, left=3 + i) for i in range(4)]
    newcomer = request(9, WAITING, 8)
    told = explain(view(running, [newcomer], available=50), newcomer)
    assert (told.reason, told.blocks_short, told.holders) == (WaitReason.PLACES, 0, ())
    assert told.estimate_seconds == pytest.approx(0.008 + (3 + 1) * 0.1)


def test_nobody_passes_one_who_was_parked() -> None:
    parked, newcomer = request(1, PARKED, 12), request(2, WAITING, 4)
    told = explain(view([request(0, RUNNING, 8, 2)], [parked, newcomer], 50), newcomer)
    assert (told.reason, told.place, told.behind) == (WaitReason.BEHIND_PARKED, 1, "r1")


def test_others_ahead_and_the_budget() -> None:
    first, second = request(1, WAITING, 12), request(2, WAITING, 4)
    seen = view([request(0, RUNNING, 8, 2)], [first, second], 50)
    assert explain(seen, second).reason is WaitReason.BEHIND_OTHERS
    assert explain(seen, first).reason is WaitReason.BUDGET


def test_a_prefix_under_way() -> None:
    owner, waiting = request(0, RUNNING, 8, 2), request(1, WAITING, 8)
    told = explain(replace(view([owner], available=50), prefix_owners={"r1": "r0"}), waiting)
    assert (told.reason, told.behind) == (WaitReason.PREFIX, "r0")


def test_a_running_request_that_was_held_up() -> None:
    running = [request(0, RUNNING, 40, 10), request(1, RUNNING, 9, 2)]
    running[1].last_step = 6
    told = explain(view(running), running[1])
    assert (told.reason, told.blocks_short) == (WaitReason.BLOCKS, 1)
    assert told.holders == (BlockHolder("r0", 10),)
    running[1].table.extend((90,))
    assert explain(view(running), running[1]).reason is WaitReason.BUDGET


def test_growth_of_those_who_run_postpones_the_estimate() -> None:
    """r0 ends in 4 steps and gives 2 blocks, but r1 takes one meanwhile."""
    running = [request(0, RUNNING, 8, 2, left=4), request(1, RUNNING, 8, 2, left=20)]
    newcomer = request(2, WAITING, 8)
    told = explain(view(running, [newcomer]), newcomer)
    assert told.estimate_seconds == pytest.approx(0.008 + 21 * 0.1)


def test_a_queue_of_several_poolfuls_takes_several_rounds() -> None:
    running = [request(0, RUNNING, 16, 4, left=10)]
    queued = [request(i, WAITING, 16) for i in range(1, 9)]
    near, far = (explain(view(running, queued), queued[i]).estimate_seconds for i in (0, 7))
    assert near is not None and far is not None
    assert far > near + 6 * 10 * 0.1


def test_without_rates_there_is_no_estimate() -> None:
    newcomer = request(0, WAITING, 8)
    unmeasured = replace(view([], [newcomer], 50), rates=CostModel(1, 0.0, 0.0))
    assert explain(unmeasured, newcomer).estimate_seconds is None
