"""The pools of KV blocks of one rank, on its device and in host memory, and moves between them.

A block is one contiguous run over all layers, and over both models where a draft model has its keys
and values there too (`kv_layers.py`): so it moves in one copy, and neighbours that stay neighbours
move together. Does not know which block belongs to whom. Units: blocks, bytes, seconds.
"""

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch

from blockyard.cuda.backend import BlockMoves
from blockyard.scheduler.plan import BlockCopy
from blockyard.workers.kv_layers import KVGeometry, KVLayers
from blockyard.workers.large_memory import held_memory

__all__ = ["KVCache"]


def _no_mover(blocks: torch.Tensor, host_blocks: torch.Tensor) -> None:
    """Leaves moves to torch's copies."""


class KVCache(KVLayers):
    """All KV blocks of one rank, and in them the keys and values of the model that it serves.

    The memory is not cleared: slots never written to may hold anything, NaN included. Host memory
    is page-locked when the device is a GPU, and else taken by the system page by page when used.

    Attributes:
        num_blocks: blocks that requests may have; `pool` has one more where there is a null block.
        null_block: the one after them, where there is one.
        host_blocks: what `blocks` is, for the host's blocks.
        host_pool: what `pool` is, for them: uint8 `[blocks, block_bytes]`.
        beside: keys and values of the draft model in the same blocks; None without one.

    Args:
        geometry: shape of a block.
        num_blocks, num_host_blocks: how many on either side.
        device: the one side.
        null_block: whether there is one more block, `null_block`, that no request has: what rows
            write that only fill up a step goes there.
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
        *,
        null_block: bool = False,
    ) -> None:
        if num_blocks < 1:
            raise ValueError(f"the pool has {num_blocks} blocks; it needs at least 1")
        if num_host_blocks < 0:
            raise ValueError(f"the host pool has {num_host_blocks} blocks; 0 means none")
        self.num_blocks = self.null_block = num_blocks
        super().__init__(geometry, _make_pool(geometry, num_blocks + null_block, device))
        shape = num_host_blocks, geometry.block_bytes
        self.host_pool = torch.empty(shape, dtype=torch.uint8)
        self.host_blocks = geometry.numbers(self.host_pool)
        self.beside = KVLayers.beside_of(geometry, self.pool)
        if device.type == "cuda" and num_host_blocks:
            unlock = _lock_pages(self.host_pool)
            weakref.finalize(self, unlock)
        # One for each direction: both may be under way, each with memory to gather blocks in.
        self._out_mover = mover(self.pool, self.host_pool)
        self._in_mover = mover(self.pool, self.host_pool)

    @property
    def num_host_blocks(self) -> int:
        """Blocks in the host pool."""
        return self.host_blocks.shape[0]

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
        self.check_moves(swap_outs, copies, swap_ins)
        seconds = self._timed(self.swap_out, swap_outs)
        self.copy(copies)
        return seconds + self._timed(self.swap_in, swap_ins)

    def check_moves(
        self,
        swap_outs: Sequence[BlockCopy],
        copies: Sequence[BlockCopy],
        swap_ins: Sequence[BlockCopy],
    ) -> None:
        """Prove that a plan's moves can be made.

        Raises:
            ValueError: see `move`.
        """
        _check("swapped out", swap_outs, self.num_blocks, self.num_host_blocks)
        _check("copied", copies, self.num_blocks, self.num_blocks)
        _check("swapped in", swap_ins, self.num_host_blocks, self.num_blocks)
        chained = {move.source for move in copies} & {move.destination for move in copies}
        if chained:
            raise ValueError(f"block {min(chained)} is copied while another is copied over it")

    def swap_out(self, moves: Sequence[BlockCopy]) -> None:
        """Queue moves to the host, which `check_moves` has seen, on torch's current stream."""
        if self._out_mover is None:
            _copy_runs(self.pool, self.host_pool, moves)
        else:
            self._out_mover.swap_out(_pairs(moves))

    def copy(self, moves: Sequence[BlockCopy]) -> None:
        """The same for copies."""
        if self._out_mover is None:
            _copy_runs(self.pool, self.pool, moves)
        else:
            self._out_mover.copy(_pairs(moves))

    def swap_in(self, moves: Sequence[BlockCopy]) -> None:
        """The same for moves from the host."""
        if self._in_mover is None:
            _copy_runs(self.host_pool, self.pool, moves)
        else:
            self._in_mover.swap_in(_pairs(moves))

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


def _make_pool(geometry: KVGeometry, num_blocks: int, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return held_memory(num_blocks * geometry.block_bytes).view(num_blocks, -1)
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
