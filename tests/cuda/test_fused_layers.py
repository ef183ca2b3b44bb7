"""RMSNorm and gated activations by kernel, in the emulation, against float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from blockyard.cuda.emulator.build import EmulatedLibrary
from blockyard.cuda.fused_layers import MOST_WIDTH, KernelLayers, layers_build
from blockyard.cuda.launch import KernelLibrary
from blockyard.cuda.reference_layers import ReferenceLayers

TOLERANCE = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""One rounding of the result; everything before it is float32."""


def random_rows(*shape: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=random) * scale).to(dtype)


def check(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal up to one rounding of each number, and one float32 in the sum behind it."""
    off = (found.double() - expected).abs()
    allowed = TOLERANCE[found.dtype] * expected.abs() * 1.01 + 2.0**-24
    assert bool((off <= allowed).all()), float((off - allowed).max())


WIDTHS = [8, 64, 96, 128, 512, 520, 576, 2048, 4096, 5120, 16384]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(emulated: EmulatedLibrary, width: int, dtype: torch.dtype) -> None:
    rows = random_rows(3, width, dtype=dtype, scale=3.0)
    weight = random_rows(width, dtype=dtype, seed=1)
    found = KernelLayers(emulated).rms_norm(rows, weight, 1e-5)
    check(found, ReferenceLayers().rms_norm(rows.double(), weight, 1e-5))


@pytest.mark.parametrize("num_rows", [0, 1, 8, 9, 37])
@pytest.mark.parametrize("width", [72, 1032])
def test_a_residual_is_added_before(emulated: EmulatedLibrary, width: int, num_rows: int) -> None:
    hidden = random_rows(num_rows, width, dtype=torch.bfloat16)
    residual = random_rows(num_rows, width, dtype=torch.bfloat16, seed=1, scale=20.0)
    weight = random_rows(width, dtype=torch.float32, seed=2)
    found, sums = KernelLayers(emulated).add_rms_norm(hidden, residual, weight, 1e-6)
    assert torch.equal(sums, hidden + residual)
    check(found, ReferenceLayers().rms_norm(sums.double(), weight, 1e-6))


def test_heads_of_a_fused_projection(emulated: EmulatedLibrary) -> None:
    """Queries and keys lie inside the projection: strided by token and by head."""
    projected = random_rows(5, 8 * 64, dtype=torch.bfloat16)
    keys = projected.view(5, 8, 64)[:, 4:6]
    weight = random_rows(64, dtype=torch.bfloat16, seed=1)
    found = KernelLayers(emulated).rms_norm(keys, weight, 1e-6)
    assert found.shape == (5, 2, 64)
    check(found, ReferenceLayers().rms_norm(keys.double(), weight, 1e-6))


@pytest.mark.parametrize("value", [0.0, 1e-30, 3e4, float("nan")])
def test_extreme_rows_do_not_touch_their_neighbours(
    emulated: EmulatedLibrary, value: float
) -> None:
    rows = random_rows(3, 64, dtype=torch.bfloat16)
    rows[1] = value
    weight = torch.ones(64, dtype=torch.bfloat16)
    found = KernelLayers(emulated).rms_norm(rows, weight, 1e-6)
    expected = ReferenceLayers().rms_norm(rows.double(), weight, 1e-6)
    check(found[::2], expected[::2])
    if value == value:
        check(found, expected)
    else:
        assert bool(found[1].isnan().all())


GATES: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (KernelLayers.silu_and_multiply, ReferenceLayers.silu_and_multiply),
    (KernelLayers.gelu_and_multiply, ReferenceLayers.gelu_and_multiply),
]


@pytest.mark.parametrize(("kernel", "twin"), GATES, ids=["silu", "gelu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(0, 8), (1, 8), (3, 1536), (33, 24)])
def test_gated_activations(
    emulated: EmulatedLibrary,
    kernel: Callable[..., Any],
    twin: Callable[..., Any],
    dtype: torch.dtype,
    shape: tuple[int, int],
) -> None:
    rows, width = shape
    both = random_rows(rows, 2 * width, dtype=dtype, scale=4.0)
    if rows:
        both[0, :4] = torch.tensor([-1e4, -30.0, 0.0, 1e4]).to(dtype)
        both[0, width : width + 4] = 1.0
    found = kernel(KernelLayers(emulated), both)
    assert found.shape == (rows, width)
    check(found, twin(ReferenceLayers(), both.double()))


def test_gated_activations_of_a_strided_projection(emulated: EmulatedLibrary) -> None:
    wide = random_rows(6, 64, dtype=torch.bfloat16)
    part = wide[:, 16:48]
    found = KernelLayers(emulated).silu_and_multiply(part)
    check(found, ReferenceLayers().silu_and_multiply(part.double()))


def test_a_missing_barrier_is_caught(
    emulated: EmulatedLibrary, planted: Callable[[int], KernelLibrary]
) -> None:
    rows = random_rows(4, 2048, dtype=torch.bfloat16)
    weight = torch.ones(2048, dtype=torch.bfloat16)
    expected = KernelLayers(emulated).rms_norm(rows, weight, 1e-6)
    found = KernelLayers(planted(1)).rms_norm(rows, weight, 1e-6)
    assert not torch.equal(found, expected)


@pytest.mark.parametrize(
    ("dtype", "weight_dtype", "width", "words"),
    [
        (torch.float32, torch.float32, 64, "bfloat16 and float16"),
        (torch.bfloat16, torch.float16, 64, "bfloat16 and float32"),
        (torch.bfloat16, torch.bfloat16, 60, "multiples of 8"),
        (torch.bfloat16, torch.bfloat16, MOST_WIDTH + 8, "up to 16384"),
    ],
)
def test_what_no_kernel_takes_is_refused(
    dtype: torch.dtype, weight_dtype: torch.dtype, width: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        layers_build(dtype, weight_dtype, width)


def test_rows_that_cannot_be_read_16_bytes_at_a_time_are_refused(
    emulated: EmulatedLibrary,
) -> None:
    rows = torch.zeros(2, 80, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="16 bytes at a time"):
        KernelLayers(emulated).rms_norm(rows[:, 1:65], torch.ones(64, dtype=torch.bfloat16), 1e-6)
