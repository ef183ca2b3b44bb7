"""Keys and values written by kernel, in the emulation: the bytes of the torch twin."""

from collections.abc import Callable

import pytest
import torch

from blockyard.cuda import reference_cache
from blockyard.cuda.backend import LayerKV
from blockyard.cuda.cache_write import cache_write_build, rotate_and_write, write
from blockyard.cuda.emulator.build import EmulatedLibrary
from blockyard.cuda.launch import KernelLibrary

BF16, FP16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn


def pool(
    kv_heads: int, block_size: int, dim: int, dtype: torch.dtype, num_blocks: int = 6
) -> LayerKV:
    """The second of three layers of a pool whose bytes are all 0x5A."""
    shape = (num_blocks, 3, 2, kv_heads, block_size, dim)
    size = torch.Size(shape).numel() * dtype.itemsize
    blocks = torch.full((size,), 0x5A, dtype=torch.uint8).view(dtype).view(shape)[:, 1]
    scales = torch.rand(2, kv_heads, generator=torch.Generator().manual_seed(3)) * 0.02 + 0.005
    return LayerKV(blocks, scales if dtype is FP8 else None)


def whole(kv: LayerKV) -> torch.Tensor:
    """All bytes of the pool that the layer is part of."""
    return torch.empty(0, dtype=torch.uint8).set_(kv.blocks.untyped_storage())


def angles(tokens: int, half: int) -> tuple[torch.Tensor, torch.Tensor]:
    turn = torch.rand(tokens, half, generator=torch.Generator().manual_seed(9)) * 6.3
    return turn.cos(), turn.sin()


def case(
    tokens: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype, slots: int
) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(tokens + dim)
    projected = torch.randn(tokens, (heads + 2 * kv_heads) * dim, generator=random).to(dtype)
    return projected, torch.randperm(slots, generator=random)[:tokens]


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal, but for the last bit where the order of a fused multiplication matters."""
    step = 2.0 ** (-7 if found.dtype is BF16 else -10)
    off = (found.double() - expected.double()).abs()
    return bool((off <= step * expected.double().abs() + 1e-6).all())


@pytest.mark.parametrize("kv_dtype", [None, FP8])
@pytest.mark.parametrize(
    ("dim", "rotated", "heads", "kv_heads", "dtype"),
    [
        (64, 64, 3, 1, BF16),
        (64, 16, 4, 4, FP16),
        (80, 32, 2, 2, BF16),
        (96, 96, 4, 1, FP16),
        (128, 128, 8, 2, BF16),
        (256, 256, 2, 1, BF16),
        (128, 0, 2, 2, BF16),
    ],
)
def test_rotated_and_written_as_the_twin_does(
    emulated: EmulatedLibrary,
    dim: int,
    rotated: int,
    heads: int,
    kv_heads: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None,
) -> None:
    block_size, tokens = 16, 9
    projected, slots = case(tokens, heads, kv_heads, dim, dtype, 6 * block_size)
    slots[4] = -1  # a row that only fills up the step
    turn = angles(tokens, rotated // 2)
    ours = pool(kv_heads, block_size, dim, kv_dtype or dtype)
    twin = pool(kv_heads, block_size, dim, kv_dtype or dtype)
    found = rotate_and_write(emulated, ours, projected, *turn, heads, slots, block_size)
    expected = reference_cache.rotate_and_write(twin, projected, *turn, heads, slots, block_size)
    exact = reference_cache.rotate(
        projected.double().view(tokens, -1, dim)[:, :heads], *(each.double() for each in turn)
    )
    assert near(found, exact)
    assert near(found, expected)
    stored = ours.blocks.float(), twin.blocks.float()
    if kv_dtype is None:
        assert near(ours.blocks, twin.blocks)
    else:
        # One step of e4m3 where the last bit of a turned number tips the rounding.
        assert bool(((stored[0] - stored[1]).abs() <= 0.126 * stored[1].abs() + 0.003).all())
        assert float((stored[0] != stored[1]).float().mean()) < 0.01
    # Values and whatever is not written to are equal to the byte.
    kept = [kv.blocks[:, 1].contiguous().view(torch.uint8) for kv in (ours, twin)]
    assert torch.equal(*kept)
    assert int((whole(ours) == 0x5A).sum()) >= whole(ours).numel() - 2 * tokens * (
        kv_heads * dim * (kv_dtype or dtype).itemsize
    )


@pytest.mark.parametrize("kv_dtype", [BF16, FP8])
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_written_as_they_are(
    emulated: EmulatedLibrary, block_size: int, kv_dtype: torch.dtype
) -> None:
    kv_heads, dim, tokens = 2, 64, 7
    projected, slots = case(tokens, 0, kv_heads, dim, BF16, 6 * block_size)
    projected[0, :4] = torch.tensor([3e4, -3e4, -0.0, 0.0])
    slots[-1] = -1
    keys, values = projected.view(tokens, 2, kv_heads, dim).unbind(1)  # strided by token
    ours, twin = (pool(kv_heads, block_size, dim, kv_dtype) for _ in range(2))
    write(emulated, ours, keys, values, slots, block_size)
    reference_cache.write(twin, keys, values, slots, block_size)
    assert torch.equal(whole(ours), whole(twin))


def test_a_nan_stays_one(emulated: EmulatedLibrary) -> None:
    kv = pool(1, 16, 64, FP8)
    keys = torch.full((1, 1, 64), float("nan"), dtype=BF16)
    write(emulated, kv, keys, keys, torch.tensor([20]), 16)
    assert bool(kv.blocks[1, :, 0, 4].float().isnan().all())
    assert int(kv.blocks.float().isnan().sum()) == 128


def test_no_tokens_write_nothing(emulated: EmulatedLibrary) -> None:
    kv = pool(1, 16, 64, BF16)
    before = whole(kv).clone()
    nothing = torch.zeros(0, 1, 64, dtype=BF16)
    slots = torch.zeros(0, dtype=torch.int64)
    write(emulated, kv, nothing, nothing, slots, 16)
    turn = angles(0, 32)
    queries = rotate_and_write(emulated, kv, nothing.new_zeros(0, 192), *turn, 1, slots, 16)
    assert queries.shape == (0, 1, 64)
    assert torch.equal(whole(kv), before)


@pytest.mark.parametrize("fault", [2, 3], ids=["one slot too far", "not clamped"])
def test_planted_faults_change_the_bytes(
    planted: Callable[[int], KernelLibrary], fault: int
) -> None:
    projected, slots = case(5, 0, 2, 64, BF16, 96)
    projected *= 1e3
    keys, values = projected.view(5, 2, 2, 64).unbind(1)
    ours, twin = (pool(2, 16, 64, FP8) for _ in range(2))
    write(planted(fault), ours, keys, values, slots, 16)
    reference_cache.write(twin, keys, values, slots, 16)
    assert not torch.equal(whole(ours), whole(twin))


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "dim", "words"),
    [
        (torch.float32, torch.float32, 64, "bfloat16 and float16"),
        (BF16, torch.int8, 64, "float8_e4m3fn"),
        (BF16, BF16, 72, "multiples of 16"),
    ],
)
def test_what_no_kernel_takes_is_refused(
    dtype: torch.dtype, kv_dtype: torch.dtype, dim: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        cache_write_build(dtype, kv_dtype, dim, 16)


def test_a_rotation_of_odd_width_is_refused(emulated: EmulatedLibrary) -> None:
    kv = pool(1, 16, 64, BF16)
    projected, slots = case(2, 1, 1, 64, BF16, 96)
    with pytest.raises(ValueError, match="24 numbers of 64 turn"):
        rotate_and_write(emulated, kv, projected, *angles(2, 12), 1, slots, 16)
