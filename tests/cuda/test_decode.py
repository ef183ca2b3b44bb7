"""The decode kernel, run by the emulation, against float64."""

from typing import Any

import pytest
import torch

from blockyard.cuda.backend import AttentionForm
from blockyard.cuda.decode import DecodeAttention, DecodeRows
from blockyard.cuda.emulator.build import EmulatedLibrary, Schedule
from blockyard.cuda.launch import Kernel, KernelLibrary
from blockyard.cuda.sources import Build

CPU = torch.device("cpu")
BF16, FP16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
EDGES = [1, 15, 16, 17, 63, 64, 65, 0, 129]
# What rounding of weights and output may cost, for values of about 1.
TOLERANCE = {BF16: 1.6e-2, FP16: 2e-3}


def attend(library: KernelLibrary, case: Any, slots: int = 24) -> torch.Tensor:
    """The case's attention by kernel, into an output that holds NaN."""
    rows = DecodeRows(
        lengths=case.batch.lengths,
        tokens=case.batch.counts.cumsum().astype("int32") - 1,
        block_tables=case.batch.block_tables,
        block_size=case.batch.block_size,
    )
    output = torch.full_like(case.queries, float("nan"))
    step = DecodeAttention(library, rows, slots, CPU)
    step.attend(case.kv, case.queries, case.form, output)
    return output


@pytest.mark.parametrize(
    ("dim", "sharing", "dtype", "kv_dtype"),
    [
        (64, 3, BF16, BF16),
        (128, 4, BF16, FP8),
        *(
            pytest.param(*shape, marks=pytest.mark.slow)
            for shape in (
                *((64, 8, FP16, FP8), (64, 1, FP16, FP16), (80, 1, BF16, BF16), (80, 2, BF16, FP8)),
                *((96, 4, BF16, BF16), (96, 1, FP16, FP8), (128, 1, FP16, FP16)),
                *((128, 4, BF16, BF16), (128, 16, BF16, BF16), (128, 12, BF16, FP8)),
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
    steps = [
        (EDGES, 16, AttentionForm(scale), 0),
        ([300, 5, 300], 16, AttentionForm(scale), 8),
        ([600, 40, 99, 100, 101], 16, AttentionForm(scale, window=100), 0),
        ([300, 17, 1], 16, AttentionForm(scale, sinks=sinks), 0),
    ]
    for seed, (lengths, block_size, form, shared) in enumerate(steps):
        case = make_case(
            lengths,
            heads=2 * sharing,
            dim=dim,
            dtype=dtype,
            kv_dtype=kv_dtype,
            block_size=block_size,
            form=form,
            shared_blocks=shared,
            seed=seed,
        )
        emulated.schedule = Schedule(seed=seed)
        assert case.worst(attend(emulated, case)) < TOLERANCE[dtype]


class Wider:
    """Launches more blocks than there is work, as a captured graph does for a smaller step."""

    def __init__(self, library: EmulatedLibrary) -> None:
        self._library = library

    def kernel(self, build: Build, name: str) -> Kernel:
        kernel = self._library.kernel(build, name)

        class WiderKernel:
            arguments = kernel.arguments

            def __call__(
                self, grid: int, block: int, arguments: Any, shared_bytes: int = 0
            ) -> None:
                more = 7 if name == "decode_attention" else 0
                kernel(grid + more, block, arguments, shared_bytes)

        return WiderKernel()


def test_blocks_past_the_work_do_nothing(emulated: EmulatedLibrary, make_case: Any) -> None:
    case = make_case([300, 5, 64], heads=6)
    assert torch.equal(attend(Wider(emulated), case), attend(emulated, case))
