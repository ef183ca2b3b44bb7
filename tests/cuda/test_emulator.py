"""The emulation itself: any order gives the same bits, and planted faults do not stay hidden."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from blockyard.cuda.decode import DecodeAttention, DecodeRows
from blockyard.cuda.emulator.build import EmulatedLibrary, EmulationError, Schedule
from blockyard.cuda.launch import KernelLibrary
from blockyard.cuda.sources import Build

CPU = torch.device("cpu")


def attend(library: KernelLibrary, case: Any) -> torch.Tensor:
    rows = DecodeRows(
        case.batch.lengths,
        case.batch.counts.cumsum().astype("int32") - 1,
        case.batch.block_tables,
        case.batch.block_size,
    )
    output = torch.full_like(case.queries, float("nan"))
    DecodeAttention(library, rows, 4, CPU).attend(case.kv, case.queries, case.form, output)
    return output


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize("landing", ["eager", "lazy", "random"])
def test_any_order_gives_the_same_bits(
    emulated: EmulatedLibrary, make_case: Any, order: str, landing: str
) -> None:
    case = make_case([200, 37, 300], heads=6)
    emulated.schedule = Schedule("forward", "eager")
    expected = attend(emulated, case)
    emulated.schedule = Schedule(order, landing, seed=7)
    assert torch.equal(attend(emulated, case), expected)


@pytest.mark.parametrize("fault", [1, 3], ids=["no barrier after the wait", "no wait"])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_read_too_early_is_poison(
    emulated: EmulatedLibrary,
    planted: Callable[[int], KernelLibrary],
    make_case: Any,
    fault: int,
    seed: int,
) -> None:
    case = make_case([200, 37], heads=8)
    emulated.schedule = Schedule(seed=seed)
    assert not case.worst(attend(planted(fault), case)) < 0.1


def test_a_collective_that_not_all_reach_is_named_with_file_and_line(
    planted: Callable[[int], KernelLibrary], make_case: Any
) -> None:
    case = make_case([200, 37], heads=8)
    with pytest.raises(
        EmulationError, match=r"no thread can run[^\0]*shfl_xor_sync at .*\.cuh:\d+"
    ):
        attend(planted(4), case)


def test_a_kernel_that_does_not_compile_shows_the_compilers_words(
    emulated: EmulatedLibrary,
) -> None:
    build = Build.of("decode.cu", HEAD_DIM=64)
    with pytest.raises(EmulationError, match="BF16"):
        emulated.kernel(build, "decode_attention")
