"""The planner's figures for known cases; the contiguous ones are held against the allocators."""

import pytest

from blockyard.scheduler.capacity.kv_budget import KvBudget, MemoryTooSmall
from blockyard.scheduler.capacity.kv_math import KNOWN_SHAPES, ModelShape
from blockyard.scheduler.capacity.lengths import (
    Lengths,
    constant_lengths,
    fitted_lengths,
    measured_lengths,
)
from blockyard.scheduler.capacity.plan_alternatives import plan_alternatives
from blockyard.scheduler.capacity.verdict import Finding
from blockyard.scheduler.contiguous.allocators import make_allocator
from blockyard.scheduler.planner import CapacityPlan, plan_capacity

LLAMA_7B = KNOWN_SHAPES["llama-2-7b"]
LLAMA_13B = KNOWN_SHAPES["llama-2-13b"]
MODEL_8B = ModelShape(32, 8, 128, 8_000_000_000)


def planned(shape: ModelShape, limit: int, requests: int, mean: float = 100) -> CapacityPlan:
    return plan_capacity(KvBudget(shape, limit), constant_lengths(mean), requests)


@pytest.mark.parametrize(
    ("shape", "limit", "requests", "expected"),
    [
        (LLAMA_13B, 2048, 32, 53_687_091_200),
        (LLAMA_7B, 1024, 16, 8_589_934_592),
        (LLAMA_7B, 1024, 48, 25_769_803_776),
        (LLAMA_13B, 2048, 8, 13_421_772_800),
        (LLAMA_13B, 4096, 8, 26_843_545_600),
        (LLAMA_7B, 2048, 1, 1_073_741_824),
        (MODEL_8B, 1000, 1, 131_072_000),
    ],
)
def test_contiguous_kv_bytes(shape: ModelShape, limit: int, requests: int, expected: int) -> None:
    plan = planned(shape, limit, requests)
    assert plan.kv_bytes_contiguous == plan.kv_memory_bytes == expected
    assert plan.contiguous.concurrency == requests


def test_17_6_percent_of_the_reservation_is_used() -> None:
    assert planned(LLAMA_7B, 1024, 16, 180).contiguous.filled_ratio == pytest.approx(0.1757812)


@pytest.mark.parametrize(
    ("memory", "contiguous", "blocks"), [(50_000_000_000, 93, 476), (50 * 2**30, 100, 512)]
)
def test_short_requests_in_long_reservations(memory: int, contiguous: int, blocks: int) -> None:
    budget = KvBudget(MODEL_8B, 4096, kv_memory_bytes=memory)
    plan = plan_capacity(budget, constant_lengths(800))
    assert plan.contiguous.concurrency == contiguous
    assert plan.contiguous.reservation_waste == pytest.approx(0.8046875)
    assert plan.blocks.concurrency == blocks == plan.blocks.sure_concurrency
    assert plan.blocks.blocks_per_request == 50
    assert plan.blocks.total_blocks == memory // 2_097_152
    assert plan.blocks.filled_ratio == 1.0
    assert plan.verdict.findings == (Finding.RESERVATION_WASTE,)


@pytest.mark.parametrize("lengths", [constant_lengths(680), fitted_lengths(680, 1850)])
def test_a_peak_of_24_over_8_reservations(lengths: Lengths) -> None:
    budget = KvBudget(LLAMA_13B, 2048, kv_memory_bytes=13_421_772_800)
    plan = plan_capacity(budget, lengths, requests=24)
    assert plan.total_slots == 16_384
    assert (plan.contiguous.running, plan.contiguous.refused) == (8, 16)
    assert plan.contiguous.filled_slots == 5440
    assert (plan.blocks.running, plan.blocks.refused, plan.blocks.total_blocks) == (23, 1, 1024)


def test_tails_take_the_blocks_that_a_24th_would_need() -> None:
    budget = KvBudget(LLAMA_13B, 2048, kv_memory_bytes=13_421_772_800)
    blocks = plan_capacity(budget, constant_lengths(680), requests=24).blocks
    assert (blocks.needed_blocks, blocks.blocks_per_request) == (1032, 43)
    assert blocks.filled_slots == 23 * 680
    assert blocks.filled_ratio == pytest.approx(680 / 688)
    assert blocks.pool_filled_ratio == pytest.approx(23 * 680 / 16_384)


def test_bytes_really_used_beside_a_refusal() -> None:
    plan = planned(LLAMA_13B, 4096, 8, 800)
    assert plan.contiguous.filled_bytes == 5_242_880_000
    assert plan.rank_kv_bytes_per_token * 4096 == 3_355_443_200


@pytest.mark.parametrize(("limit", "length"), [(2048, 680), (4096, 800), (512, 512), (3000, 1)])
def test_the_allocator_model_runs_as_many_as_the_plan(limit: int, length: int) -> None:
    slots = 50_000
    budget = KvBudget(MODEL_8B, limit, kv_memory_bytes=slots * 131_072)
    plan = plan_capacity(budget, constant_lengths(length), requests=1000).contiguous
    allocator = make_allocator("max_seq_len", slots, limit)
    for number in range(1000):
        allocator.allocate(str(number), length, length)
    books = allocator.books()
    assert (books.running, books.refusals) == (plan.running, plan.refused)
    assert (books.filled, books.filled_ratio) == (plan.filled_slots, plan.filled_ratio)
    assert books.pool_filled_ratio == plan.pool_filled_ratio


def test_weights_and_allowance_leave_the_rest() -> None:
    budget = KvBudget(MODEL_8B, 2048, gpu_memory_bytes=80 * 2**30, num_gpus=8)
    assert budget.rank_kv_memory_bytes() == 80 * 2**30 - 16_000_000_000 - 2 * 2**30
    assert budget.num_groups == 8
    split = KvBudget(MODEL_8B, 2048, gpu_memory_bytes=80 * 2**30, num_gpus=8, num_ranks=2)
    assert split.rank_kv_memory_bytes() == 80 * 2**30 - 8_000_000_000 - 2 * 2**30
    assert split.rank_kv_bytes_per_token == 65_536
    assert plan_capacity(split, constant_lengths(100)).kv_bytes_per_token == 131_072


def test_weights_that_do_not_fit_are_refused_with_a_way_out() -> None:
    budget = KvBudget(KNOWN_SHAPES["llama-2-70b"], 2048, gpu_memory_bytes=80 * 2**30)
    with pytest.raises(MemoryTooSmall, match=r"leave no room for KV .* try --tp 2"):
        budget.rank_kv_memory_bytes()


def test_a_shared_prefix_is_held_once() -> None:
    budget = KvBudget(MODEL_8B, 4096, kv_memory_bytes=1024 * 16 * 131_072)
    alone = plan_capacity(budget, constant_lengths(800)).blocks
    shared = plan_capacity(budget, constant_lengths(800), shared_prefix_tokens=520).blocks
    assert (alone.concurrency, shared.shared_blocks) == (20, 32)
    assert shared.concurrency == (1024 - 32) // 18
    assert shared.filled_slots == 512 + 55 * 288
    with pytest.raises(ValueError, match="shorter than the mean"):
        plan_capacity(budget, constant_lengths(800), shared_prefix_tokens=800)


def test_a_spread_costs_certainty_but_not_the_mean() -> None:
    budget = KvBudget(MODEL_8B, 4096, kv_memory_bytes=50_000_000_000)
    plan = plan_capacity(budget, fitted_lengths(800, 2400)).blocks
    assert 470 < plan.concurrency <= 476
    assert 400 < plan.sure_concurrency < plan.concurrency


def test_alternatives_change_one_thing_each() -> None:
    budget = KvBudget(MODEL_8B, 4096, gpu_memory_bytes=80 * 2**30, num_gpus=8)
    found = {entry.change: entry for entry in plan_alternatives(budget, constant_lengths(800))}
    planned = found["as planned"]
    assert planned.blocks_concurrency is not None
    assert planned.contiguous_concurrency is not None
    fp8 = found["kv fp8"].blocks_concurrency
    assert fp8 is not None
    assert abs(fp8 - 2 * planned.blocks_concurrency) <= 8
    two = found["tp 2"]
    assert (two.num_gpus, two.blocks_concurrency) == (8, 4 * (75_751_862_272 // 1_048_576 // 50))
    coarse = found["block size 128"]
    assert coarse.blocks_concurrency is not None
    assert coarse.blocks_concurrency < planned.blocks_concurrency
    assert coarse.contiguous_concurrency == planned.contiguous_concurrency
    assert set(found) == {
        *("as planned", "tp 2", "tp 4", "tp 8", "kv fp8"),
        *("block size 8", "block size 32", "block size 64", "block size 128"),
    }


def test_told_kv_memory_follows_the_weights_to_other_ranks() -> None:
    budget = KvBudget(MODEL_8B, 4096, kv_memory_bytes=50_000_000_000)
    found = {entry.change: entry for entry in plan_alternatives(budget, constant_lengths(800))}
    # Two ranks: 50e9 and 8e9 of weights that moved away, on each; half a token on each.
    assert found["tp 2"].blocks_concurrency == 58_000_000_000 // 1_048_576 // 50
    assert found["tp 2"].num_gpus == 2


def test_ranks_past_the_heads_repeat_them() -> None:
    shape = ModelShape(32, 2, 128, 0)
    budget = KvBudget(shape, 4096, gpu_memory_bytes=2**34, num_gpus=8, num_ranks=2)
    found = {entry.change: entry for entry in plan_alternatives(budget, constant_lengths(800))}
    two, four = found["as planned"].blocks_concurrency, found["tp 4"].blocks_concurrency
    assert two is not None
    assert four is not None
    assert abs(two - 2 * four) <= 4


def test_no_memory_no_alternatives() -> None:
    assert plan_alternatives(KvBudget(MODEL_8B, 4096), constant_lengths(800)) == ()


def test_requests_over_the_limit_are_left_out_of_both() -> None:
    budget = KvBudget(MODEL_8B, 1000, kv_memory_bytes=10_000 * 131_072)
    plan = plan_capacity(budget, measured_lengths([500, 500, 2000], "a test"))
    assert plan.contiguous.filled_ratio == 0.5


@pytest.mark.parametrize(("requests", "message"), [(0, "requests is 0"), (-1, "requests is -1")])
def test_no_requests_make_no_plan(requests: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_capacity(KvBudget(MODEL_8B, 100), constant_lengths(10), requests)


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="4 ranks need as many GPUs, there are 2"):
        KvBudget(MODEL_8B, 100, num_ranks=4, num_gpus=2)


def test_fewer_requests_than_fit_fill_only_their_own() -> None:
    budget = KvBudget(LLAMA_13B, 2048, kv_memory_bytes=13_421_772_800)
    plan = plan_capacity(budget, constant_lengths(680), requests=3)
    assert (plan.contiguous.concurrency, plan.contiguous.running) == (8, 3)
    assert (plan.blocks.concurrency, plan.blocks.running) == (23, 3)
    assert (plan.contiguous.refused, plan.blocks.refused) == (0, 0)
    assert plan.contiguous.filled_slots == plan.blocks.filled_slots == 3 * 680
    assert plan.contiguous.reserved_slots == 3 * 2048
