"""The native library for each instruction set, and steps over pools whose unused slots hold NaN."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from blockyard.cuda.backend import AttentionBatch, LayerKV
from blockyard.workers.cpu.compiler import INSTRUCTION_SETS, NativeUnavailable
from blockyard.workers.cpu.library import NativePool, load_library


@pytest.fixture(scope="session", params=[one.name for one in INSTRUCTION_SETS])
def native_pool(request: pytest.FixtureRequest) -> NativePool:
    """Two threads; once for every instruction set that this processor has."""
    try:
        return load_library(request.param).pool(2)
    except NativeUnavailable as error:
        pytest.skip(f"no native code here: {error}")


@dataclass
class Case:
    """One step: its batch, the pool that holds what came before, and what the step brings."""

    batch: AttentionBatch
    kv: LayerKV
    pool: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor

    def copy(self) -> "Case":
        """The same on a pool of its own."""
        pool = self.pool.clone()
        scales = self.kv.scales.clone() if self.kv.scales is not None else None
        kv = LayerKV(pool[:, 1], scales)
        return Case(self.batch, kv, pool, self.queries, self.keys, self.values)


def _case(
    starts: Sequence[int],
    counts: Sequence[int],
    heads: int,
    kv_heads: int,
    dim: int = 16,
    block_size: int = 16,
    numbers: torch.dtype = torch.float32,
) -> Case:
    """Blocks in random order in a strided layer; positions before the step are filled."""
    torch.manual_seed(sum(starts) + dim)
    lengths = [start + count for start, count in zip(starts, counts, strict=True)]
    blocks = [-(-length // block_size) for length in lengths]
    order = torch.randperm(sum(blocks) + 3).tolist()
    shape = (len(order), 2, 2, kv_heads, block_size, dim)
    scales = None
    if numbers is torch.int8:
        pool = torch.full(shape, 77, dtype=torch.int8)
        scales = torch.full((len(order), 2, kv_heads, block_size), float("nan"))
    else:
        pool = torch.full(shape, float("nan"), dtype=numbers)
    tables = np.full((len(starts), max(blocks)), order.pop(), dtype=np.int32)
    slots: list[int] = []
    for row, length in enumerate(lengths):
        for index in range(blocks[row]):
            tables[row, index] = order.pop()
        for position in range(length):
            block, offset = int(tables[row, position // block_size]), position % block_size
            if position >= starts[row]:
                slots.append(block * block_size + offset)
            elif scales is not None:
                pool[block, 1, :, :, offset] = torch.randint(-127, 128, (2, kv_heads, dim))
                scales[block, :, :, offset] = torch.rand(2, kv_heads) * 0.02
            else:
                pool[block, 1, :, :, offset] = torch.randn(2, kv_heads, dim).to(numbers)
    tokens = sum(counts)
    return Case(
        AttentionBatch(
            counts=np.array(counts, dtype=np.int32),
            lengths=np.array(lengths, dtype=np.int32),
            block_tables=torch.from_numpy(tables),
            slots=torch.tensor(slots),
            block_size=block_size,
        ),
        LayerKV(pool[:, 1], scales),
        pool,
        torch.randn(tokens, heads, dim),
        torch.randn(tokens, kv_heads, dim),
        torch.randn(tokens, kv_heads, dim),
    )


@pytest.fixture(scope="session")
def make_case() -> Callable[..., Case]:
    return _case
