"""Linears with packed weights: what they compute, and what each storage keeps of the weights."""

import pytest
import torch

from blockyard.workers.cpu.library import NativePool, load_library
from blockyard.workers.cpu.packed import PackedLinear, WeightStorage

EVERY = list(WeightStorage)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("storage", EVERY)
@pytest.mark.parametrize("rows", [*range(1, 20), 31, 96, 97, 200])
def test_any_number_of_rows(native_pool: NativePool, storage: WeightStorage, rows: int) -> None:
    weight, inputs = normal(80, 608), normal(rows, 608, seed=1)
    layer = PackedLinear(native_pool, [weight], storage)
    expected = inputs.double() @ layer.restore()[0].double().T
    torch.testing.assert_close(layer.multiply(inputs).double(), expected, atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("storage", EVERY)
def test_rows_that_no_cache_holds_are_taken_stretch_by_stretch(
    native_pool: NativePool, storage: WeightStorage
) -> None:
    weight, inputs = normal(960, 800), normal(96, 800, seed=1)
    layer = PackedLinear(native_pool, [weight], storage)
    expected = inputs.double() @ layer.restore()[0].double().T
    torch.testing.assert_close(layer.multiply(inputs).double(), expected, atol=3e-4, rtol=1e-5)


@pytest.mark.parametrize("storage", EVERY)
@pytest.mark.parametrize(("columns", "inputs"), [(1, 1), (16, 31), (17, 33), (300, 64), (5, 1000)])
def test_shapes_that_fill_no_panel_and_no_group(
    native_pool: NativePool, storage: WeightStorage, columns: int, inputs: int
) -> None:
    for count in (1, 7):
        weight, rows, bias = normal(columns, inputs), normal(count, inputs, seed=1), normal(columns)
        layer = PackedLinear(native_pool, [weight], storage, bias)
        expected = rows.double() @ layer.restore()[0].double().T + bias
        torch.testing.assert_close(layer.multiply(rows).double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("inputs", [608, 600])
def test_inputs_may_lie_anyhow_and_outputs_be_written_over(
    native_pool: NativePool, inputs: int
) -> None:
    layer = PackedLinear(native_pool, [normal(75, inputs)], WeightStorage.FP32)
    rows = normal(9, inputs, seed=1)
    expected = layer.multiply(rows)
    assert torch.equal(layer.multiply(rows.T.contiguous().T), expected)  # side by side by column
    assert torch.equal(layer.multiply(normal(18, inputs, seed=2)[::2].copy_(rows)), expected)
    halves = rows.bfloat16()
    assert torch.equal(layer.multiply(halves), layer.multiply(halves.float()))
    given = layer.multiply(normal(9, inputs, seed=3))
    assert layer.multiply(rows, outputs=given) is given
    assert torch.equal(given, expected)
    with pytest.raises(ValueError, match=r"outputs are \(9, 75\); 8 rows make 75 columns"):
        layer.multiply(rows[:8], outputs=given)


@pytest.mark.parametrize("storage", EVERY)
def test_layers_side_by_side_and_taking_turns(
    native_pool: NativePool, storage: WeightStorage
) -> None:
    one, other, rows = normal(32, 96), normal(32, 96, seed=1), normal(9, 96, seed=2)
    beside = PackedLinear(native_pool, [one, other], storage).multiply(rows)
    alone = [PackedLinear(native_pool, [weight], storage).multiply(rows) for weight in (one, other)]
    assert torch.equal(beside, torch.cat(alone, dim=1))
    turning = PackedLinear(native_pool, [one, other], storage, alternating=True)
    panels = turning.multiply(rows).view(9, 2, 2, 16)
    assert torch.equal(panels[:, :, 0].reshape(9, 32), alone[0])
    assert torch.equal(panels[:, :, 1].reshape(9, 32), alone[1])
    for weight, restored in zip((one, other), turning.restore(), strict=True):
        assert torch.equal(restored, PackedLinear(native_pool, [weight], storage).restore()[0])


def restored(pool: NativePool, weight: torch.Tensor, storage: WeightStorage) -> torch.Tensor:
    return PackedLinear(pool, [weight], storage).restore()[0]


def test_what_each_storage_keeps(native_pool: NativePool) -> None:
    weight = normal(64, 96) * torch.logspace(-2, 2, 64)[:, None]
    assert torch.equal(restored(native_pool, weight, WeightStorage.FP32), weight)
    assert torch.equal(restored(native_pool, weight, WeightStorage.BF16), weight.bfloat16().float())
    groups = weight.view(64, 3, 32)
    most = groups.abs().amax(-1, keepdim=True)
    error = (restored(native_pool, weight, WeightStorage.INT8).view(64, 3, 32) - groups).abs()
    assert (error <= most / 127 * 0.51 + most * 2**-10).all()
    spread = groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)
    error = (restored(native_pool, weight, WeightStorage.INT4).view(64, 3, 32) - groups).abs()
    assert (error <= spread / 15 * 0.51 + (spread + most) * 2**-10).all()


def test_weights_that_have_four_bits_already_are_kept_exactly(native_pool: NativePool) -> None:
    scales = (normal(48, 4, 1).abs() + 0.01).half().float()
    leasts = normal(48, 4, 1, seed=1).half().float()
    fours = torch.randint(0, 16, (48, 4, 32), generator=torch.Generator().manual_seed(2))
    fours[..., 0], fours[..., 31] = 0, 15
    weight = (fours * scales + leasts).flatten(1)
    kept = restored(native_pool, weight, WeightStorage.INT4)
    torch.testing.assert_close(kept, weight, atol=1e-6, rtol=1e-6)


def test_groups_without_spread(native_pool: NativePool) -> None:
    for storage in EVERY:
        assert torch.equal(restored(native_pool, torch.zeros(16, 64), storage), torch.zeros(16, 64))
    half = torch.full((16, 64), 0.5)
    assert torch.equal(restored(native_pool, half, WeightStorage.INT4), half)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_threads_change_nothing(native_pool: NativePool, threads: int) -> None:
    weight, rows = normal(400, 64), normal(23, 64, seed=1)
    expected = PackedLinear(native_pool, [weight], WeightStorage.FP32).multiply(rows)
    pool = load_library().pool(threads)
    layer = PackedLinear(pool, [weight], WeightStorage.FP32)
    for _ in range(300):
        assert torch.equal(layer.multiply(rows), expected)


def test_a_pool_of_no_threads_is_refused(native_pool: NativePool) -> None:
    with pytest.raises(ValueError, match="0 threads"):
        load_library().pool(0)
