"""The pools of KV blocks of one rank, on its device and in host memory, and moves between them.

Layout `[block][layer][K, V][kv head][slot][head_dim]` in both: a block is one contiguous run over
all layers, so it moves in one copy, and neighbours that stay neighbours move together. In int8 a
float32 scale for each slot of a head follows the numbers of the whole block, as
`[layer][K, V][kv head][slot]`, and moves with them. Does not know which block belongs to whom.
Units: blocks, bytes, seconds.
"""

import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from blockyard.cuda.backend import BlockMoves, LayerKV
from blockyard.scheduler.plan import BlockCopy

__all__ = ["KVCache", "KVGeometry"]


def _no_mover(blocks: torch.Tensor, host_blocks: torch.Tensor) -> None:
    """Leaves moves to torch's copies."""


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """Shape of the KV of one token on this rank, and of a block; `dtype` is what is stored."""

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        """Refuse int8 blocks whose scales would lie at odd addresses."""
        if self.dtype is torch.int8 and self.block_size * self.head_dim % 2:
            raise ValueError(
                f"blocks of {self.block_size} slots with heads of {self.head_dim} numbers cannot "
                "be kept in int8; choose an even block size"
            )

    @property
    def scaled_slots(self) -> bool:
        """Whether each slot of a head has a scale of its own."""
        return self.dtype is torch.int8

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values over all layers, scales of its slots included."""
        scale_bytes = torch.float32.itemsize if self.scaled_slots else 0
        head_bytes = self.head_dim * self.dtype.itemsize + scale_bytes
        return 2 * self.layers * self.kv_heads * head_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.block_size * self.token_bytes

    def numbers(self, pool: torch.Tensor) -> torch.Tensor:
        """Keys and values in `pool`, uint8 `[blocks, block_bytes]`, a view.

        `[blocks, layers, 2 (K, V), kv heads, block_size, head_dim]`.
        """
        shape = (self.layers, 2, self.kv_heads, self.block_size, self.head_dim)
        used = math.prod(shape) * self.dtype.itemsize
        return pool[:, :used].view(self.dtype).view(len(pool), *shape)

    def slot_scales(self, pool: torch.Tensor) -> torch.Tensor | None:
        """The slots' scales in `pool`, a view: `[blocks, layers, 2, kv heads, block_size]`."""
        if not self.scaled_slots:
            return None
        shape = (self.layers, 2, self.kv_heads, self.block_size)
        used = math.prod(shape) * self.head_dim
        return pool[:, used:].view(torch.float32).view(len(pool), *shape)


class KVCache:
    """All KV blocks of one rank.

    The memory is not cleared: slots never written to may hold anything, NaN included. Host memory
    is page-locked when the device is a GPU, and else taken by the system page by page when used.

    Attributes:
        geometry: shape of a block.
        blocks: `[num_blocks, layers, 2 (K, V), kv heads, block_size, head_dim]`, what is stored.
        host_blocks: the same for the host's blocks.
        pool, host_pool: both with the scales of slots, uint8 `[blocks, block_bytes]`.
        head_scales: of float8 blocks, float32 `[layers, 2 (K, V), kv heads]`: what a stored number
            is multiplied by. 1 until they are set, which must be before the first write.
        scaled: whether they were set, or there are none to set.

    Args:
        geometry: shape of a block.
        num_blocks, num_host_blocks: how many on either side.
        device: the one side.
        mover: makes what moves blocks of both tensors, or None for torch's copies; see
            `AttentionBackend.mover`.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        num_blocks: int,
        device: torch.device,
        num_host_blocks: int = 0,
        mover: Callable[[torch.Tensor, torch.Tensor], BlockMoves | None] = _no_mover,
    ) -> None:
        if num_blocks < 1:
            raise ValueError(f"the pool has {num_blocks} blocks; it needs at least 1")
        if num_host_blocks < 0:
            raise ValueError(f"the host pool has {num_host_blocks} blocks; 0 means none")
        self.geometry = geometry
        self.pool = _empty_pool(geometry, num_blocks, device)
        self.host_pool = _empty_pool(geometry, num_host_blocks, torch.device("cpu"))
        self.blocks = geometry.numbers(self.pool)
        self.host_blocks = geometry.numbers(self.host_pool)
        if device.type == "cuda" and num_host_blocks:
            unlock = _lock_pages(self.host_pool)
            weakref.finalize(self, unlock)
        self.head_scales: torch.Tensor | None = None
        if geometry.dtype is torch.float8_e4m3fn:
            shape = (geometry.layers, 2, geometry.kv_heads)
            self.head_scales = torch.ones(shape, device=device)
        self.scaled = self.head_scales is None
        self._layers = self._layer_views()

        self._mover = mover(self.pool, self.host_pool)

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self.blocks.shape[0]

    @property
    def num_host_blocks(self) -> int:
        """Blocks in the host pool."""
        return self.host_blocks.shape[0]

    def layer(self, index: int) -> LayerKV:
        """One layer of every block, with its scales; views."""
        return self._layers[index]

    def set_head_scales(self, scales: torch.Tensor) -> None:
        """Give float8 blocks their scales, `[layers, 2, kv heads or 1]`."""
        assert self.head_scales is not None, "only float8 blocks have scales of heads"
        self.head_scales.copy_(scales)
        self.scaled = True

    def clear(self) -> None:
        """Set every number and scale on the device to 0."""
        self.pool.zero_()

    def move(
        self,
        swap_outs: Sequence[BlockCopy] = (),
        copies: Sequence[BlockCopy] = (),
        swap_ins: Sequence[BlockCopy] = (),
    ) -> float:
        """Carry out a plan's moves: all swaps out, then all copies, then all swaps in.

        Returns:
            The seconds that the swaps took; they have ended.

        Raises:
            ValueError: a block is outside its pool, or what one column does depends on the order
                within it. Nothing was moved.
        """
        _check("swapped out", swap_outs, self.num_blocks, self.num_host_blocks)
        _check("copied", copies, self.num_blocks, self.num_blocks)
        _check("swapped in", swap_ins, self.num_host_blocks, self.num_blocks)
        chained = {move.source for move in copies} & {move.destination for move in copies}
        if chained:
            raise ValueError(f"block {min(chained)} is copied while another is copied over it")
        seconds = self._timed(self._swap_out, swap_outs)
        self._copy(copies)
        return seconds + self._timed(self._swap_in, swap_ins)

    def _swap_out(self, moves: Sequence[BlockCopy]) -> None:
        if self._mover is None:
            _copy_runs(self.pool, self.host_pool, moves)
        else:
            self._mover.swap_out(_pairs(moves))

    def _copy(self, moves: Sequence[BlockCopy]) -> None:
        if self._mover is None:
            _copy_runs(self.pool, self.pool, moves)
        else:
            self._mover.copy(_pairs(moves))

    def _swap_in(self, moves: Sequence[BlockCopy]) -> None:
        if self._mover is None:
            _copy_runs(self.host_pool, self.pool, moves)
        else:
            self._mover.swap_in(_pairs(moves))

    def _timed(
        self, swap: Callable[[Sequence[BlockCopy]], None], moves: Sequence[BlockCopy]
    ) -> float:
        if not moves:
            return 0.0
        began = time.perf_counter()
        swap(moves)
        if self.pool.is_cuda:
            # Who is told that the step has ended may reuse both sides of the move.
            torch.cuda.synchronize(self.pool.device)
        return time.perf_counter() - began

    def _layer_views(self) -> tuple[LayerKV, ...]:
        scales = self.geometry.slot_scales(self.pool)
        if scales is not None:
            by_layer = scales.unbind(1)
        elif self.head_scales is not None:
            by_layer = self.head_scales.unbind(0)
        else:
            return tuple(LayerKV(layer) for layer in self.blocks.unbind(1))
        return tuple(map(LayerKV, self.blocks.unbind(1), by_layer))


def _empty_pool(geometry: KVGeometry, num_blocks: int, device: torch.device) -> torch.Tensor:
    return torch.empty(num_blocks, geometry.block_bytes, dtype=torch.uint8, device=device)


def _lock_pages(pool: torch.Tensor) -> Callable[[], object]:
    """Let the GPU copy from and to `pool` directly, until the answer is called.

    Locked in place, since torch's own pinned memory is rounded up to a power of two bytes.
    """
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = pool.data_ptr()
    code = int(runtime.cudaHostRegister(address, pool.nbytes, 0))
    if code:
        raise MemoryError(
            f"CUDA error {code}: {pool.nbytes / 2**20:,.0f} MiB of host memory for swapped blocks "
            "cannot be locked; ask for fewer host blocks, or raise the limit on locked memory"
        )
    return partial(runtime.cudaHostUnregister, address)


def _check(done: str, moves: Iterable[BlockCopy], num_sources: int, num_destinations: int) -> None:
    filled: set[int] = set()
    for move in moves:
        if not 0 <= move.source < num_sources or not 0 <= move.destination < num_destinations:
            raise ValueError(
                f"block {move.source} is {done} to block {move.destination}; the pools have "
                f"{num_sources} and {num_destinations} blocks"
            )
        if move.destination in filled:
            raise ValueError(f"two blocks are {done} to block {move.destination}")
        filled.add(move.destination)


def _pairs(moves: Iterable[BlockCopy]) -> list[tuple[int, int]]:
    return [(move.source, move.destination) for move in moves]


def _copy_runs(source: torch.Tensor, destination: torch.Tensor, moves: Sequence[BlockCopy]) -> None:
    for first, target, length in _runs(moves):
        destination[target : target + length].copy_(
            source[first : first + length], non_blocking=True
        )


def _runs(moves: Iterable[BlockCopy]) -> Iterator[tuple[int, int, int]]:
    """Source, destination and length of each run that is adjacent on both sides."""
    first = target = length = 0
    for source, destination in sorted((move.source, move.destination) for move in moves):
        if length and source == first + length and destination == target + length:
            length += 1
            continue
        if length:
            yield first, target, length
        first, target, length = source, destination, 1
    if length:
        yield first, target, length
