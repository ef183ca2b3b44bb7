"""Builds know their kernels, the structs these take, and everything they are made of."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from blockyard.cuda import sources
from blockyard.cuda.sources import Build, SourceError

HEADER = """#include "prims.cuh"
struct PairArguments {
  const float* from;  // [numbers]
  int count;
  int64_t stride;  // behind a gap of 4 bytes
  float weights[3];
};
"""
SOURCE = """#include "header.cuh"
extern "C" __global__ void __launch_bounds__(128, 2)
double_all(const __grid_constant__ PairArguments a) {
}
extern "C" __global__ void __launch_bounds__(32) half_all(const __grid_constant__ PairArguments a) {
}
"""


class Pair(ctypes.Structure):
    _fields_ = (
        *(("from", ctypes.c_void_p), ("count", ctypes.c_int), ("stride", ctypes.c_int64)),
        ("weights", ctypes.c_float * 3),
    )


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "header.cuh").write_text(HEADER)
    (tmp_path / "prims.cuh").write_text("")
    (tmp_path / "two.cu").write_text(SOURCE)
    monkeypatch.setattr(sources, "KERNELS_DIR", tmp_path)
    return tmp_path


def test_structs_lie_as_a_compiler_lays_them_out(kernels: Path) -> None:
    found = Build.of("two.cu").kernels
    assert list(found) == ["double_all", "half_all"]
    layout = found["half_all"]
    assert layout.itemsize == ctypes.sizeof(Pair)
    assert layout.fields is not None
    assert {name: field[1] for name, field in layout.fields.items()} == {
        name: getattr(Pair, name).offset for name in ("from", "count", "stride", "weights")
    }
    assert layout["weights"].shape == (3,)
    assert layout["stride"] == np.int64


@pytest.mark.parametrize(
    ("line", "why"),
    [("double rate;", "cannot read 'double rate;'"), ("", "struct PairArguments is")],
)
def test_what_cannot_be_read_is_said(kernels: Path, line: str, why: str) -> None:
    text = HEADER.replace("int count;", line) if line else ""
    (kernels / "header.cuh").write_text(text)
    with pytest.raises(SourceError, match=why):
        _ = Build.of("two.cu").kernels


def test_a_build_is_named_by_all_it_is_made_of(kernels: Path) -> None:
    before = Build.of("two.cu", DIM=64)
    digests = {before.digest(), before.digest("90"), before.with_defines(DIM=128).digest()}
    assert before.digest() == Build.of("two.cu", DIM=64).digest()
    (kernels / "prims.cuh").write_text("// included by the header only")
    digests.add(Build.of("two.cu", DIM=64).digest())
    (kernels / "other.cuh").write_text("// not included")
    digests.add(Build.of("two.cu", DIM=64).digest())
    assert len(digests) == 4
