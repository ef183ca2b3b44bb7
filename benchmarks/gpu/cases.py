"""Steps of attention over blocks: small ones with poison, held against float64, and large ones.

Units: tokens, blocks, bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from sizes import Heads

from blockyard.cuda.backend import AttentionBatch, AttentionForm, LayerKV
from blockyard.cuda.reference import ReferenceBackend

__all__ = ["BLOCK_SIZE", "Arena", "Paged", "checked_case", "tables_of", "timed_case"]

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Paged:
    """A step whose cache is filled.

    Attributes:
        layers: of one pool, block-major.
        queries: `[tokens, heads, head_dim]`.
    """

    batch: AttentionBatch
    layers: list[LayerKV]
    queries: torch.Tensor
    form: AttentionForm

    @property
    def first_tokens(self) -> npt.NDArray[np.int32]:
        """Index of each request's first token in the step."""
        return (np.cumsum(self.batch.counts) - self.batch.counts).astype(np.int32)

    def worst(self, output: torch.Tensor) -> float:
        """Greatest difference from the definition in float64, computed on the host; NaN if any."""
        batch = self.batch
        kv, form = self.layers[0], self.form
        on_host = AttentionBatch(
            batch.counts, batch.lengths, batch.block_tables.cpu(), batch.slots.cpu(), BLOCK_SIZE
        )
        expected = (
            ReferenceBackend()
            .begin(on_host)
            .attend(
                LayerKV(kv.blocks.cpu(), None if kv.scales is None else kv.scales.cpu()),
                self.queries.cpu().double(),
                AttentionForm(
                    form.scale,
                    form.window,
                    form.soft_cap,
                    None if form.sinks is None else form.sinks.cpu(),
                ),
            )
        )
        return float((output.cpu().double() - expected).abs().max())


class Arena:
    """Random numbers to be read as keys and values: filled once, whatever is timed on them.

    Args:
        device: where they lie.
        size: bytes.
    """

    def __init__(self, device: torch.device, size: int) -> None:
        self._numbers = torch.empty(size // 2, dtype=torch.bfloat16, device=device).normal_()
        self._as_float8: torch.Tensor | None = None

    @property
    def size(self) -> int:
        """Bytes that can be taken."""
        return self._numbers.nbytes

    def take(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """The first of them in this shape. Who takes again gets the same."""
        count = int(np.prod(shape))
        if dtype is torch.float8_e4m3fn:
            if self._as_float8 is None or self._as_float8.numel() < count:
                self._as_float8 = self._numbers[:count].to(dtype)
            return self._as_float8[:count].view(shape)
        return self._numbers[:count].view(dtype).view(shape)


def checked_case(
    device: torch.device,
    heads: Heads,
    lengths: Sequence[int],
    counts: Sequence[int] | None = None,
    *,
    dtype: torch.dtype = torch.bfloat16,
    kv_dtype: torch.dtype = torch.bfloat16,
    form: AttentionForm | None = None,
    shared_blocks: int = 0,
    seed: int = 0,
) -> Paged:
    """A random step; slots that no token was written to hold NaN."""
    random = torch.Generator().manual_seed(seed)
    counts = [1] * len(lengths) if counts is None else list(counts)
    tables, num_blocks = tables_of(lengths, shared_blocks, seed, spare=3)
    shape = (num_blocks, 2, 2, heads.kv_heads, BLOCK_SIZE, heads.dim)
    pool = torch.randn(shape, generator=random).to(kv_dtype)
    written = torch.zeros(num_blocks, BLOCK_SIZE, dtype=torch.bool)
    slots = []
    for row, length in enumerate(lengths):
        positions = torch.arange(length)
        blocks = torch.from_numpy(tables[row]).long()[positions // BLOCK_SIZE]
        written[blocks, positions % BLOCK_SIZE] = True
        own = blocks * BLOCK_SIZE + positions % BLOCK_SIZE
        slots.append(own[-counts[row] :] if length else torch.zeros(1, dtype=torch.int64))
    bytes_of = pool.view(torch.uint8).view(*shape[:5], -1)
    bytes_of.masked_fill_(~written[:, None, None, None, :, None], 0xFF)
    pool = pool.to(device)
    scales = None
    if kv_dtype.itemsize == 1:
        scales = (torch.rand(2, heads.kv_heads, generator=random) + 0.5).to(device)
    batch = AttentionBatch(
        counts=np.array(counts, dtype=np.int32),
        lengths=np.array(lengths, dtype=np.int32),
        block_tables=torch.from_numpy(tables).to(device),
        slots=torch.cat(slots).to(device),
        block_size=BLOCK_SIZE,
        host_tables=tables,
    )
    queries = torch.randn(sum(counts), heads.heads, heads.dim, generator=random)
    return Paged(
        batch,
        [LayerKV(pool[:, 1], scales)],
        queries.to(dtype).to(device),
        form or AttentionForm(heads.dim**-0.5),
    )


def timed_case(
    device: torch.device,
    arena: Arena,
    heads: Heads,
    lengths: Sequence[int],
    counts: Sequence[int],
    kv_dtype: torch.dtype,
    layers: int = 1,
) -> Paged:
    """A step in bfloat16 whose blocks lie anywhere in a pool of the arena."""
    tables, num_blocks = tables_of(lengths, 0, 0, spare=0)
    pool = arena.take(kv_dtype, num_blocks, layers, 2, heads.kv_heads, BLOCK_SIZE, heads.dim)
    scales = None
    if kv_dtype.itemsize == 1:
        scales = torch.ones(2, heads.kv_heads, device=device)
    batch = AttentionBatch(
        counts=np.array(counts, dtype=np.int32),
        lengths=np.array(lengths, dtype=np.int32),
        block_tables=torch.from_numpy(tables).to(device),
        slots=torch.zeros(sum(counts), dtype=torch.int64, device=device),
        block_size=BLOCK_SIZE,
    )
    shape = (sum(counts), heads.heads, heads.dim)
    queries = torch.empty(shape, dtype=torch.bfloat16, device=device).normal_()
    return Paged(
        batch,
        [LayerKV(layer, scales) for layer in pool.unbind(1)],
        queries,
        AttentionForm(heads.dim**-0.5),
    )


def tables_of(
    lengths: Sequence[int], shared_blocks: int, seed: int, spare: int
) -> tuple[npt.NDArray[np.int32], int]:
    """Block tables of requests that begin with the same blocks, and how many blocks there are.

    Entries past a request's own name a block of which no slot is written, if there is one spare.
    """
    needed = [-(-length // BLOCK_SIZE) for length in lengths]
    own = [max(0, blocks - shared_blocks) for blocks in needed]
    num_blocks = shared_blocks + sum(own) + spare
    free = np.random.default_rng(seed).permutation(num_blocks).astype(np.int32)
    shared, free = free[:shared_blocks], free[shared_blocks:]
    unused = free[-1] if spare else 0
    tables = np.full((len(lengths), max(*needed, 1)), unused, dtype=np.int32)
    begin = 0
    for row, blocks in enumerate(needed):
        mine = np.concatenate((shared, free[begin : begin + own[row]]))[:blocks]
        tables[row, :blocks] = mine
        begin += own[row]
    return tables, num_blocks
