"""The prefill kernel, run by the emulation, against float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from blockyard.cuda.backend import AttentionForm
from blockyard.cuda.emulator.build import EmulatedLibrary, Schedule
from blockyard.cuda.launch import KernelLibrary
from blockyard.cuda.prefill import PrefillAttention, PrefillRows, serves_warpgroups

CPU = torch.device("cpu")
BF16, FP16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
TOLERANCE = {BF16: 1.6e-2, FP16: 2e-3}


def attend(library: KernelLibrary, case: Any, slots: int, warpgroups: bool = False) -> torch.Tensor:
    """The case's attention by kernel, into an output that holds NaN."""
    counts = case.batch.counts
    rows = PrefillRows(
        counts,
        case.batch.lengths,
        (counts.cumsum() - counts).astype("int32"),
        case.batch.block_tables,
        case.batch.block_size,
    )
    output = torch.full_like(case.queries, float("nan"))
    step = PrefillAttention(library, rows, slots, CPU, warpgroups)
    step.attend(case.kv, case.queries, case.form, output)
    return output


@pytest.mark.parametrize(
    ("dim", "sharing", "dtype", "kv_dtype"),
    [
        (64, 3, BF16, BF16),
        *(
            pytest.param(*shape, marks=pytest.mark.slow)
            for shape in (
                *((64, 8, FP16, FP8), (80, 1, BF16, BF16), (80, 2, FP16, FP8)),
                *((96, 4, BF16, BF16), (96, 1, FP16, FP8), (128, 4, BF16, BF16)),
                *((128, 1, FP16, FP16), (128, 16, BF16, FP8), (128, 7, BF16, BF16)),
                *((256, 2, BF16, BF16), (256, 8, BF16, FP8), (256, 1, FP16, FP16)),
            )
        ),
    ],
)
def test_random_steps(
    emulated: EmulatedLibrary,
    make_case: Any,
    dim: int,
    sharing: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
) -> None:
    scale = dim**-0.5
    sinks = torch.linspace(-2, 3, 2 * sharing)
    # lengths, counts, form, slots: many slots make pieces that are merged.
    steps = [
        ([1, 15, 16, 17, 64, 65, 70], [1, 15, 2, 17, 64, 65, 6], AttentionForm(scale), 1),
        ([600, 40], [20, 40], AttentionForm(scale), 64),
        ([300, 90], [30, 90], AttentionForm(scale, window=50), 1),
        ([530, 17], [9, 3], AttentionForm(scale, sinks=sinks), 64),
        ([70], [70], AttentionForm(scale, sinks=sinks, window=7), 1),
    ]
    for seed, (lengths, counts, form, slots) in enumerate(steps):
        case = make_case(
            lengths,
            counts,
            heads=2 * sharing,
            dim=dim,
            dtype=dtype,
            kv_dtype=kv_dtype,
            form=form,
            shared_blocks=2,
            seed=seed,
        )
        emulated.schedule = Schedule(seed=seed)
        assert case.worst(attend(emulated, case, slots)) < TOLERANCE[dtype], steps[seed]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [11, 13, 14], ids=["no barrier", "no wait", "one position less"])
def test_a_planted_fault_shows(
    emulated: EmulatedLibrary,
    planted: Callable[[int], KernelLibrary],
    make_case: Any,
    fault: int,
) -> None:
    case = make_case([150, 37], [70, 5])
    assert case.worst(attend(emulated, case, 1)) < TOLERANCE[BF16]
    assert not case.worst(attend(planted(fault), case, 1)) < 5 * TOLERANCE[BF16]


@pytest.mark.parametrize(
    ("dim", "dtype", "sharing", "form"),
    [
        (64, BF16, 3, AttentionForm(0.125)),
        *(
            pytest.param(*shape, marks=pytest.mark.slow)
            for shape in (
                (128, FP16, 4, AttentionForm(0.09, window=20, sinks=torch.linspace(-1, 1, 8))),
                (128, BF16, 2, AttentionForm(0.09, soft_cap=3.0)),
                (64, FP16, 1, AttentionForm(0.125, window=70)),
            )
        ),
    ],
)
def test_by_warpgroups_as_by_warps(
    emulated: EmulatedLibrary,
    make_case: Any,
    dim: int,
    dtype: torch.dtype,
    sharing: int,
    form: AttentionForm,
) -> None:
    case = make_case(
        [150, 37, 65, 1, 300], [70, 5, 65, 1, 2], heads=2 * sharing, dim=dim, dtype=dtype, form=form
    )
    for slots in (8, 64):  # whole tiles, and cut ones
        for schedule in (Schedule(seed=1), Schedule("reverse", "lazy"), Schedule("forward")):
            emulated.schedule = schedule
            assert case.worst(attend(emulated, case, slots, warpgroups=True)) < TOLERANCE[dtype]


@pytest.mark.parametrize("fault", [41, 42], ids=["no wait for scores", "no wait for keys"])
def test_a_planted_fault_by_warpgroups_shows(
    planted: Callable[[int], KernelLibrary],
    emulated: EmulatedLibrary,
    make_case: Any,
    fault: int,
) -> None:
    case = make_case([150, 37], [70, 5])
    emulated.schedule = Schedule("random", "lazy")
    assert not case.worst(attend(planted(fault), case, 8, warpgroups=True)) < 0.1


def test_shapes_without_a_build_by_warpgroups_are_left_to_warps() -> None:
    assert serves_warpgroups(BF16, BF16, 128)
    assert not serves_warpgroups(BF16, FP8, 128)
    assert not serves_warpgroups(BF16, BF16, 96)
