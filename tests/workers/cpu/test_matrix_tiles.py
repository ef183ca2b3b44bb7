"""Many rows on the matrix unit: as exact as in float32, and rows and columns keep to themselves."""

import subprocess
import sys

import pytest
import torch

from blockyard.workers.cpu.compiler import NativeUnavailable
from blockyard.workers.cpu.library import NativePool, load_library
from blockyard.workers.cpu.packed import PackedLinear, WeightStorage

EVERY = list(WeightStorage)
REFUSED = """
import ctypes

class Stack(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

memory = ctypes.create_string_buffer(8192)
stack = Stack(ctypes.addressof(memory), 0, len(memory))
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
import torch
from blockyard.cluster.commands.doctor import examine
from blockyard.workers.cpu.library import load_library
from blockyard.workers.cpu.packed import PackedLinear, WeightStorage

library = load_library("amx")
rows, weight = torch.randn(200, 96), torch.randn(64, 96)
found = PackedLinear(library.pool(2), [weight], WeightStorage.BF16).multiply(rows)
torch.testing.assert_close(found, rows @ weight.bfloat16().float().T, atol=1e-4, rtol=1e-4)
print(library.instructions, [f.advice for f in examine() if f.name == "on the CPU"])
"""


@pytest.fixture(scope="module")
def pool() -> NativePool:
    try:
        library = load_library("amx")
    except NativeUnavailable as error:
        pytest.skip(f"no matrix unit here: {error}")
    if library.instructions != "amx":
        pytest.skip("this system does not let the matrix unit be used")
    return library.pool(2)


@pytest.fixture(scope="module")
def vectors() -> NativePool:
    """The twin: fused multiply-adds in float32."""
    return load_library("avx512").pool(2)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative_errors(layer: PackedLinear, rows: torch.Tensor) -> torch.Tensor:
    """Of sums, in units of the sums of what their products amount to without signs."""
    weight = layer.restore()[0].double()
    exact = rows.double() @ weight.T
    return (layer.multiply(rows).double() - exact).abs() / (rows.double().abs() @ weight.abs().T)


@pytest.mark.parametrize("storage", EVERY)
@pytest.mark.parametrize(
    ("columns", "inputs"), [(80, 608), (960, 576), (17, 40), (16, 1000), (5, 4000), (24, 96)]
)
def test_sums_are_as_exact_as_a_chain_of_fused_multiply_adds(
    pool: NativePool, vectors: NativePool, storage: WeightStorage, columns: int, inputs: int
) -> None:
    weight = normal(columns, inputs)
    layer, twin = (PackedLinear(one, [weight], storage) for one in (pool, vectors))
    for count in (96, 97, 193, 400):
        rows = normal(count, inputs, seed=count)
        errors, chain = relative_errors(layer, rows), relative_errors(twin, rows)
        # A group of 4 bits is a sum and a product with its least value, which may cancel.
        most = 2.0 if storage is WeightStorage.INT4 else 1.1
        assert errors.square().mean().sqrt() <= most * chain.square().mean().sqrt()
        assert errors.max() <= 2 * most * chain.max()


@pytest.mark.parametrize("storage", EVERY)
@pytest.mark.parametrize("rows", [8, 12, 15, 16, 17, 32, 33, 48, 95, 96, 192, 193, 1025])
def test_any_number_of_rows(pool: NativePool, storage: WeightStorage, rows: int) -> None:
    layer = PackedLinear(pool, [normal(176, 608)], storage)
    assert relative_errors(layer, normal(rows, 608, seed=1)).max() < 1e-6


@pytest.mark.parametrize("storage", EVERY)
def test_rows_that_no_cache_holds_pass_by_in_parts(
    pool: NativePool, storage: WeightStorage
) -> None:
    layer = PackedLinear(pool, [normal(48, 8192)], storage)
    assert relative_errors(layer, normal(700, 8192, seed=1)).max() < 1e-6


@pytest.mark.parametrize("storage", EVERY)
def test_layers_beside_each_other_and_taking_turns(
    pool: NativePool, storage: WeightStorage
) -> None:
    one, other, rows = normal(48, 96), normal(48, 96, seed=1), normal(131, 96, seed=2)
    alone = [PackedLinear(pool, [weight], storage).multiply(rows) for weight in (one, other)]
    beside = PackedLinear(pool, [one, other], storage).multiply(rows)
    assert torch.equal(beside, torch.cat(alone, dim=1))
    turning = PackedLinear(pool, [one, other], storage, alternating=True).multiply(rows)
    panels = turning.view(131, 3, 2, 16)
    for side in range(2):
        assert torch.equal(panels[:, :, side].reshape(131, 48), alone[side])


@pytest.mark.parametrize("storage", EVERY)
def test_threads_change_nothing(pool: NativePool, storage: WeightStorage) -> None:
    weight, rows = normal(400, 64), normal(230, 64, seed=1)
    expected = PackedLinear(pool, [weight], storage).multiply(rows)
    for threads in (1, 3, 5):
        layer = PackedLinear(load_library("amx").pool(threads), [weight], storage)
        for _ in range(20):
            assert torch.equal(layer.multiply(rows), expected)


@pytest.mark.parametrize("storage", EVERY)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3.4e38])
def test_a_row_without_pieces_is_what_it_is_elsewhere_and_changes_no_other(
    pool: NativePool, vectors: NativePool, storage: WeightStorage, value: float
) -> None:
    weight, rows = normal(48, 96), normal(300, 96, seed=1)
    weight[:, 7] = weight[:, 7].abs() + 1.0
    layer, twin = (PackedLinear(one, [weight], storage) for one in (pool, vectors))
    clean = layer.multiply(rows)
    rows[37, 7] = value
    found = layer.multiply(rows)
    others = torch.arange(300) != 37
    torch.testing.assert_close(found[others], clean[others], atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(found[37], twin.multiply(rows)[37], equal_nan=True)
    assert not found[37].isfinite().all() or value == 3.4e38


@pytest.mark.parametrize("storage", [WeightStorage.FP32, WeightStorage.BF16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_no_number_stays_in_its_column(
    pool: NativePool, storage: WeightStorage, value: float
) -> None:
    weight, rows = normal(48, 96), normal(200, 96, seed=1)
    clean = PackedLinear(pool, [weight], storage).multiply(rows)
    weight[21, 50] = value
    found = PackedLinear(pool, [weight], storage).multiply(rows)
    others = torch.arange(48) != 21
    assert torch.equal(found[:, others], clean[:, others])
    assert not found[:, 21].isfinite().any()


@pytest.mark.parametrize("storage", EVERY)
def test_numbers_near_the_least_are_lost_only_below_the_least(
    pool: NativePool, storage: WeightStorage
) -> None:
    layer = PackedLinear(pool, [normal(48, 96)], storage)
    weight = layer.restore()[0].double()
    for size in (1e-30, 1e-37, 1e-40):
        rows = normal(120, 96, seed=1) * size
        exact = rows.double() @ weight.T
        errors = (layer.multiply(rows).double() - exact).abs()
        lost = 3 * 2.0**-126 * weight.abs().sum(1) + 96 * 2.0**-126
        assert (errors <= 1e-6 * (rows.double().abs() @ weight.abs().T) + lost).all()


def test_where_the_system_refuses_the_unit_vectors_compute_and_it_is_told(pool: NativePool) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", REFUSED], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("avx512 ")
    assert "amx is not used: the system refuses it" in ran.stdout
