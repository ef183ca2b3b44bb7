"""Random cases of attention over blocks, and kernels built for the host, once for all tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pytest
import torch

from blockyard.cuda.backend import AttentionBatch, AttentionForm, LayerKV
from blockyard.cuda.compiler import default_cache_dir, missing_compiler
from blockyard.cuda.emulator.build import EmulatedLibrary, missing_tools
from blockyard.cuda.kv_storage import store_kv
from blockyard.cuda.launch import Kernel, KernelLibrary
from blockyard.cuda.reference import ReferenceBackend
from blockyard.cuda.sources import Build


@dataclass(frozen=True, slots=True)
class Case:
    """A step whose cache is filled; slots that nothing was written to hold NaN."""

    batch: AttentionBatch
    kv: LayerKV
    queries: torch.Tensor
    form: AttentionForm

    def expected(self) -> torch.Tensor:
        """The definition, computed in float64 from what is stored."""
        return (
            ReferenceBackend().begin(self.batch).attend(self.kv, self.queries.double(), self.form)
        )

    def worst(self, output: torch.Tensor) -> float:
        """The greatest difference from `expected`; NaN when there is one in `output`."""
        return float((output.double() - self.expected()).abs().max())


class MakeCase(Protocol):
    """Makes a random step."""

    def __call__(
        self,
        lengths: Sequence[int],
        counts: Sequence[int] | None = None,
        *,
        heads: int = 4,
        kv_heads: int = 2,
        dim: int = 64,
        block_size: int = 16,
        dtype: torch.dtype = torch.bfloat16,
        kv_dtype: torch.dtype | None = None,
        form: AttentionForm | None = None,
        shared_blocks: int = 0,
        seed: int = 0,
    ) -> Case:
        """`lengths` after the step, of which `counts` (one each) are computed in it.

        All requests begin with the same `shared_blocks` blocks, as far as they are long enough.
        """
        ...


def _make_case(
    lengths: Sequence[int],
    counts: Sequence[int] | None = None,
    *,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    kv_dtype: torch.dtype | None = None,
    form: AttentionForm | None = None,
    shared_blocks: int = 0,
    seed: int = 0,
) -> Case:
    random = torch.Generator().manual_seed(seed)
    counts = [1] * len(lengths) if counts is None else list(counts)
    form = AttentionForm(dim**-0.5) if form is None else form
    stored = dtype if kv_dtype is None else kv_dtype
    blocks = [-(-length // block_size) for length in lengths]
    num_blocks = sum(blocks) + shared_blocks + 3
    free = torch.randperm(num_blocks, generator=random).tolist()
    shared = [free.pop() for _ in range(shared_blocks)]
    unused = free.pop()
    tables = np.full((len(lengths), max(*blocks, 1)), unused, dtype=np.int32)
    for row, count in enumerate(blocks):
        own = [free.pop() for _ in range(max(0, count - shared_blocks))]
        tables[row, :count] = (shared + own)[:count]
    pool_shape = (num_blocks, 2, 2, kv_heads, block_size, dim)
    pool = torch.full((int(np.prod(pool_shape)) * stored.itemsize,), 0xFF, dtype=torch.uint8)
    scales = torch.rand(2, kv_heads, generator=random) * 0.04 + 0.02
    kv = LayerKV(
        pool.view(stored).view(pool_shape)[:, 1],  # strided like a layer of a larger pool
        scales if stored.itemsize == 1 else None,
    )
    slots = []
    for row, length in enumerate(lengths):
        # What has left the window of the first token computed may be gone.
        window = length if form.window is None else form.window
        positions = torch.arange(max(0, length - counts[row] + 1 - window), length)
        ids = torch.from_numpy(tables[row]).long()[positions // block_size]
        keys, values = torch.randn(2, len(positions), kv_heads, dim, generator=random)
        store_kv(kv, ids, positions % block_size, keys, values)
        slots.append((ids * block_size + positions % block_size)[-counts[row] :])
    batch = AttentionBatch(
        counts=np.array(counts, dtype=np.int32),
        lengths=np.array(lengths, dtype=np.int32),
        block_tables=torch.from_numpy(tables),
        slots=torch.cat(slots),
        block_size=block_size,
        host_tables=tables,
    )
    queries = torch.randn(sum(counts), heads, dim, generator=random).to(dtype)
    return Case(batch, kv, queries, form)


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    """Tensors here are small."""


@pytest.fixture(scope="session")
def make_case() -> MakeCase:
    return _make_case


@pytest.fixture(scope="session")
def emulated_library() -> EmulatedLibrary:
    """Kernels built for the host; what was built before is taken from the cache."""
    missing = missing_tools()
    if missing is not None:
        pytest.skip(f"no emulation of kernels: {missing}")
    return EmulatedLibrary(default_cache_dir() / "emulated")


@pytest.fixture
def emulated(emulated_library: EmulatedLibrary) -> EmulatedLibrary:
    """The same with the random schedule that every test starts from."""
    emulated_library.schedule = type(emulated_library.schedule)()
    return emulated_library


@pytest.fixture(scope="session")
def nvrtc() -> None:
    """For tests that compile for GPUs."""
    missing = missing_compiler()
    if missing is not None:
        pytest.skip(f"no compiler for GPUs: {missing}")


class PlantedLibrary:
    """The same kernels with a fault in them."""

    def __init__(self, library: KernelLibrary, fault: int) -> None:
        self._library = library
        self._fault = fault

    def kernel(self, build: Build, name: str) -> Kernel:
        return self._library.kernel(build.with_defines(PLANT=self._fault), name)


@pytest.fixture
def planted(emulated: EmulatedLibrary) -> Callable[[int], KernelLibrary]:
    """The emulated kernels with the fault of that number in them; with none for 0."""
    return lambda fault: PlantedLibrary(emulated, fault)


class AskedLibrary:
    """Notes which kernels are asked for."""

    def __init__(self, library: KernelLibrary) -> None:
        self._library = library
        self.names: list[str] = []

    def kernel(self, build: Build, name: str) -> Kernel:
        self.names.append(name)
        return self._library.kernel(build, name)


@pytest.fixture
def asked(emulated: EmulatedLibrary) -> AskedLibrary:
    """The emulated kernels, and the names of those that were asked for."""
    return AskedLibrary(emulated)
