"""The emulation itself: any order gives the same bits, and planted faults do not stay hidden."""

from typing import Any

import pytest
import torch

from blockyard.cuda.decode import DecodeAttention, DecodeRows
from blockyard.cuda.emulator.build import EmulatedLibrary, EmulationError, Schedule
from blockyard.cuda.launch import Kernel
from blockyard.cuda.sources import Build

CPU = torch.device("cpu")


class Planted:
    """The same kernels with a fault in them."""

    def __init__(self, library: EmulatedLibrary, fault: int) -> None:
        self._library = library
        self._fault = fault

    def kernel(self, build: Build, name: str) -> Kernel:
        return self._library.kernel(build.with_defines(PLANT=self._fault), name)


def attend(library: EmulatedLibrary, case: Any, fault: int = 0) -> torch.Tensor:
    rows = DecodeRows(
        case.batch.lengths,
        case.batch.counts.cumsum().astype("int32") - 1,
        case.batch.block_tables,
        case.batch.block_size,
    )
    output = torch.full_like(case.queries, float("nan"))
    source = Planted(library, fault) if fault else library
    DecodeAttention(source, rows, 4, CPU).attend(case.kv, case.queries, case.form, output)
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
    emulated: EmulatedLibrary, make_case: Any, fault: int, seed: int
) -> None:
    case = make_case([200, 37], heads=8)
    emulated.schedule = Schedule(seed=seed)
    assert not case.worst(attend(emulated, case, fault)) < 0.1


def test_a_collective_that_not_all_reach_is_named_with_file_and_line(
    emulated: EmulatedLibrary, make_case: Any
) -> None:
    case = make_case([200, 37], heads=8)
    with pytest.raises(
        EmulationError, match=r"no thread can run[^\0]*shfl_xor_sync at .*\.cuh:\d+"
    ):
        attend(emulated, case, fault=4)


def test_a_kernel_that_does_not_compile_shows_the_compilers_words(
    emulated: EmulatedLibrary,
) -> None:
    build = Build.of("decode.cu", HEAD_DIM=64)
    with pytest.raises(EmulationError, match="BF16"):
        emulated.kernel(build, "decode_attention")
