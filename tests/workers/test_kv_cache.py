"""The pools' shape, which swaps and kernels rely on, and moves of blocks."""

import random
from dataclasses import replace

import pytest
import torch

from blockyard.scheduler.plan import BlockCopy
from blockyard.workers import kv_cache
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVGeometry

CPU = torch.device("cpu")
GEOMETRY = KVGeometry(layers=3, kv_heads=2, head_dim=8, block_size=4, dtype=torch.bfloat16)


def test_bytes_of_known_models() -> None:
    smollm = KVGeometry(layers=30, kv_heads=3, head_dim=64, block_size=16, dtype=torch.float32)
    assert smollm.token_bytes == 46_080
    assert smollm.block_bytes == 16 * 46_080
    llama = KVGeometry(layers=32, kv_heads=8, head_dim=128, block_size=16, dtype=torch.float16)
    assert llama.token_bytes == 131_072


def test_a_block_is_one_run_over_all_layers() -> None:
    cache = KVCache(GEOMETRY, 5, torch.device("cpu"))
    assert cache.num_blocks == 5
    assert cache.blocks.shape == (5, 3, 2, 2, 4, 8)
    assert cache.blocks[2].is_contiguous()
    assert cache.blocks.stride(0) * cache.blocks.element_size() == GEOMETRY.block_bytes


def test_layers_are_views_of_the_pool() -> None:
    cache = KVCache(GEOMETRY, 5, torch.device("cpu"))
    cache.blocks.zero_()
    cache.layer(1).blocks[3, 1, 0, 2] = 7.0
    assert cache.blocks[3, 1, 1, 0, 2].eq(7.0).all()
    assert cache.blocks.count_nonzero() == 8


def test_int8_blocks_carry_a_scale_for_each_slot_of_a_head() -> None:
    geometry = replace(GEOMETRY, dtype=torch.int8)
    assert geometry.token_bytes == 2 * 3 * 2 * (8 + 4)
    cache = KVCache(geometry, 5, CPU, 2)
    cache.clear()
    kv = cache.layer(2)
    assert kv.scales is not None
    assert (kv.blocks.shape, kv.scales.shape) == ((5, 2, 2, 4, 8), (5, 2, 2, 4))
    kv.scales[3] = 0.5
    kv.blocks[3] = 7
    own = cache.pool[3].count_nonzero().item()
    assert own == cache.pool.count_nonzero() == 16 * (8 + 1)  # 0.5 has one byte that is not 0
    assert cache.layer(1).scales.count_nonzero() == 0  # type: ignore[union-attr]
    # Out to the host, into another block, and on by a copy: all of it comes along.
    cache.move(swap_outs=_moves((3, 1)), copies=_moves((3, 0)), swap_ins=_moves((1, 4)))
    for block in (0, 4):
        assert kv.scales[block].eq(0.5).all() and kv.blocks[block].eq(7).all()
    assert cache.pool.count_nonzero() == 3 * own


def test_float8_blocks_have_scales_of_heads_that_stay_where_they_are() -> None:
    cache = KVCache(replace(GEOMETRY, dtype=torch.float8_e4m3fn), 5, CPU)
    assert cache.geometry.block_bytes * 2 == GEOMETRY.block_bytes
    assert cache.head_scales is not None
    cache.head_scales[1] = 3.0
    assert cache.layer(1).scales.eq(3.0).all()  # type: ignore[union-attr]
    assert cache.layer(0).scales.eq(1.0).all()  # type: ignore[union-attr]


def test_int8_blocks_whose_scales_would_be_misplaced_are_refused() -> None:
    with pytest.raises(ValueError, match="even block size"):
        replace(GEOMETRY, dtype=torch.int8, block_size=5, head_dim=7)


def test_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="0 blocks"):
        KVCache(GEOMETRY, 0, torch.device("cpu"))


def _marked(num_blocks: int, num_host_blocks: int) -> KVCache:
    """Block `b` holds `b` everywhere, host block `b` holds `-1 - b`."""
    cache = KVCache(GEOMETRY, num_blocks, CPU, num_host_blocks)
    for block in range(num_blocks):
        cache.blocks[block] = block
    for block in range(num_host_blocks):
        cache.host_blocks[block] = -1 - block
    return cache


def _contents(pool: torch.Tensor) -> list[float]:
    flat = pool.flatten(1)
    assert torch.equal(flat, flat[:, :1].expand_as(flat)), "a block was moved in part"
    return flat[:, 0].tolist()


def _moves(*pairs: tuple[int, int]) -> tuple[BlockCopy, ...]:
    return tuple(BlockCopy(*pair) for pair in pairs)


def test_host_pool_has_the_same_layout() -> None:
    cache = KVCache(GEOMETRY, 5, CPU, 3)
    assert cache.num_host_blocks == 3
    assert cache.host_blocks.shape[1:] == cache.blocks.shape[1:]
    assert KVCache(GEOMETRY, 5, CPU).num_host_blocks == 0


def test_moves_happen_in_order_out_copy_in() -> None:
    cache = _marked(6, 4)
    # Block 2 is saved, then overwritten by a copy, in one plan; so is 3, by what comes back.
    seconds = cache.move(
        swap_outs=_moves((2, 0), (3, 3)), copies=_moves((5, 2)), swap_ins=_moves((1, 3), (0, 4))
    )
    assert _contents(cache.blocks) == [0, 1, 5, -2, 2, 5]
    assert _contents(cache.host_blocks) == [2, -2, -3, 3]
    assert seconds > 0


def test_a_round_trip_in_one_plan() -> None:
    cache = _marked(4, 2)
    cache.move(swap_outs=_moves((1, 0)), swap_ins=_moves((0, 1)))
    assert _contents(cache.blocks) == [0, 1, 2, 3]


def test_one_block_copied_to_many_and_nothing_to_do() -> None:
    cache = _marked(5, 0)
    assert cache.move(copies=_moves((1, 4), (1, 0), (1, 3))) == 0.0
    assert _contents(cache.blocks) == [1, 1, 2, 1, 1]
    assert cache.move() == 0.0


def test_any_moves_equal_single_ones() -> None:
    rng = random.Random(5)
    for _ in range(50):
        cache = _marked(24, 24)
        # Runs, broken runs, and runs on one side alone.
        count = rng.randint(1, 24)
        sources = sorted(rng.sample(range(24), count))
        shift = rng.choice([0, 24 - count])
        targets = rng.choice([list(range(shift, shift + count)), rng.sample(range(24), count)])
        pairs = list(zip(sources, targets, strict=True))
        rng.shuffle(pairs)
        expected = _contents(cache.host_blocks)
        for source, target in pairs:
            expected[target] = source
        cache.move(swap_outs=_moves(*pairs))
        assert _contents(cache.host_blocks) == expected
        assert _contents(cache.blocks) == list(range(24))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"swap_outs": _moves((6, 0))}, "block 6 is swapped out to block 0; .* 6 and 4 blocks"),
        ({"swap_outs": _moves((0, 4))}, "to block 4"),
        ({"swap_outs": _moves((-1, 0))}, "block -1 is swapped out"),
        ({"swap_outs": _moves((0, 1), (1, 1))}, "two blocks are swapped out to block 1"),
        ({"copies": _moves((0, 6))}, "copied to block 6"),
        ({"copies": _moves((0, 2), (1, 2))}, "two blocks are copied to block 2"),
        ({"copies": _moves((0, 1), (1, 2))}, "block 1 is copied while another"),
        ({"swap_ins": _moves((4, 0))}, "block 4 is swapped in .* 4 and 6 blocks"),
        ({"swap_ins": _moves((0, -1))}, "to block -1"),
        ({"swap_ins": _moves((0, 3), (1, 3))}, "two blocks are swapped in to block 3"),
    ],
)
def test_moves_that_mean_nothing_move_nothing(
    columns: dict[str, tuple[BlockCopy, ...]], message: str
) -> None:
    cache = _marked(6, 4)
    with pytest.raises(ValueError, match=message):
        cache.move(**{"swap_ins": _moves((0, 0)), **columns})
    assert _contents(cache.blocks) == [0, 1, 2, 3, 4, 5]
    assert _contents(cache.host_blocks) == [-1, -2, -3, -4]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_moves_between_a_gpu_and_locked_memory() -> None:
    cache = KVCache(GEOMETRY, 6, torch.device("cuda"), 4)
    assert cache.host_blocks.is_pinned()
    for block in range(6):
        cache.blocks[block] = block
    cache.move(swap_outs=_moves((2, 0), (3, 1), (5, 3)), swap_ins=_moves((0, 5), (1, 2)))
    assert _contents(cache.blocks.cpu()) == [0, 1, 3, 3, 4, 2]
    assert _contents(cache.host_blocks[[0, 1, 3]]) == [2, 3, 5]


class LockingRuntime:
    """Stands in for the CUDA runtime's calls."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.locked: list[tuple[int, int]] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.locked.append((address, size))
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        (only,) = self.locked
        assert only[0] == address
        self.locked.clear()
        return 0


def test_locked_memory_is_the_whole_host_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = LockingRuntime(0)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    pool = KVCache(GEOMETRY, 1, CPU, 3).host_blocks
    unlock = kv_cache._lock_pages(pool)
    assert runtime.locked == [(pool.data_ptr(), 3 * GEOMETRY.block_bytes)]
    unlock()
    assert not runtime.locked


def test_memory_that_cannot_be_locked_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: LockingRuntime(2))
    with pytest.raises(MemoryError, match=r"CUDA error 2: .* ask for fewer host blocks"):
        kv_cache._lock_pages(KVCache(GEOMETRY, 1, CPU, 3).host_blocks)


def test_negative_host_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 blocks; 0 means none"):
        KVCache(GEOMETRY, 1, CPU, -1)
