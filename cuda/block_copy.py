"""Moves whole blocks: between blocks of the device by kernel, to and from the host by DMA.

A block is one contiguous run over all layers, so nothing is ever copied layer by layer. Blocks
that are adjacent in host memory move in one DMA: directly where they are adjacent on the device
too, or large enough that a DMA each costs nothing; else through a staging buffer that a kernel
fills or empties. Knows neither steps nor fences: everything is queued on torch's current stream,
in order. Units: blocks, bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from blockyard.cuda.launch import KernelLibrary, address
from blockyard.cuda.sources import Build
from blockyard.cuda.upload import Upload

__all__ = ["BLOCK_COPY_BUILD", "BlockMover", "Run", "copy_blocks", "runs_of"]

BLOCK_COPY_BUILD = Build.of("block_copy.cu")

_THREADS = 256
_SHARE_BYTES = 16 * 4 * _THREADS
"""What one thread block copies."""

_DIRECT_BYTES = 1 << 20
"""A DMA of this size takes 20 us on a link of 50 GB/s, several times what it costs to begin."""

Moves = Sequence[tuple[int, int]]
"""Pairs of block ids: where from, where to."""


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks that are adjacent in host memory, in order.

    Attributes:
        host: the first of them.
        device: their blocks on the device, one for each.
    """

    host: int
    device: tuple[int, ...]

    @property
    def adjacent(self) -> bool:
        """Whether they are adjacent on the device too."""
        return self.device[-1] - self.device[0] == len(self.device) - 1 and list(
            self.device
        ) == sorted(self.device)


def runs_of(pairs: Moves, most: int) -> Iterator[Run]:
    """Pairs (device block, host block) as runs of at most `most` blocks, by host block."""
    ordered = sorted(pairs, key=lambda pair: pair[1])
    begin = 0
    for end in range(1, len(ordered) + 1):
        together = (
            end < len(ordered) and ordered[end][1] == ordered[end - 1][1] + 1 and end - begin < most
        )
        if not together:
            yield Run(ordered[begin][1], tuple(device for device, _ in ordered[begin:end]))
            begin = end


def copy_blocks(
    library: KernelLibrary, source: torch.Tensor, destination: torch.Tensor, moves: Moves
) -> None:
    """Copy blocks of one device tensor to blocks of another, or of the same.

    Args:
        library: where the kernel comes from.
        source, destination: `[blocks, ...]`, contiguous, blocks of one size in bytes.
        moves: no block may be written twice, nor be both read and written.

    Raises:
        ValueError: blocks differ in size, or cannot be read 16 bytes at a time.
    """
    block_bytes = source.stride(0) * source.element_size()
    if block_bytes != destination.stride(0) * destination.element_size() or block_bytes % 16:
        raise ValueError(
            f"blocks of {block_bytes} and of "
            f"{destination.stride(0) * destination.element_size()} bytes: "
            "they must be equal, and a multiple of 16"
        )
    if not moves:
        return
    upload = Upload(source.device, pairs=np.array(moves, dtype=np.int32))
    kernel = library.kernel(BLOCK_COPY_BUILD, "copy_blocks")
    arguments = np.zeros(1, kernel.arguments)
    arguments["source"] = address(source)
    arguments["destination"] = address(destination)
    arguments["pairs"] = upload["pairs"]
    arguments["block_bytes"] = block_bytes
    arguments["num_pairs"] = len(moves)
    shares = -(-block_bytes // _SHARE_BYTES)
    arguments["shares"] = shares
    kernel(len(moves) * shares, _THREADS, arguments)


class BlockMover:
    """Swaps blocks of one pool out to host memory and back, and copies them; see `BlockMoves`.

    Args:
        library: where the kernel comes from.
        pool: `[blocks, ...]` on the device.
        host: `[host blocks, ...]`, page-locked, of the same blocks.
        staging_blocks: blocks that are gathered into one DMA at most.
    """

    def __init__(
        self,
        library: KernelLibrary,
        pool: torch.Tensor,
        host: torch.Tensor,
        staging_blocks: int = 64,
    ) -> None:
        self._library = library
        self._pool = pool
        self._host = host
        self._block_bytes = pool.stride(0) * pool.element_size()
        direct = self._block_bytes >= _DIRECT_BYTES
        self._staging = None if direct else pool.new_empty(staging_blocks, *pool.shape[1:])
        self._most = len(host) if direct else staging_blocks

    def swap_out(self, moves: Moves) -> None:
        """Queue copies from device blocks to host blocks."""
        for run in runs_of(moves, self._most):
            target = self._host[run.host : run.host + len(run.device)]
            if run.adjacent:
                first = run.device[0]
                target.copy_(self._pool[first : first + len(target)], non_blocking=True)
            elif self._staging is None:
                for offset, block in enumerate(run.device):
                    target[offset].copy_(self._pool[block], non_blocking=True)
            else:
                gather = [(block, offset) for offset, block in enumerate(run.device)]
                copy_blocks(self._library, self._pool, self._staging, gather)
                target.copy_(self._staging[: len(target)], non_blocking=True)

    def copy(self, moves: Moves) -> None:
        """Queue copies between device blocks."""
        copy_blocks(self._library, self._pool, self._pool, moves)

    def swap_in(self, moves: Moves) -> None:
        """Queue copies from host blocks to device blocks."""
        backwards = [(device, host) for host, device in moves]
        for run in runs_of(backwards, self._most):
            source = self._host[run.host : run.host + len(run.device)]
            if run.adjacent:
                first = run.device[0]
                self._pool[first : first + len(source)].copy_(source, non_blocking=True)
            elif self._staging is None:
                for offset, block in enumerate(run.device):
                    self._pool[block].copy_(source[offset], non_blocking=True)
            else:
                self._staging[: len(source)].copy_(source, non_blocking=True)
                spread = list(enumerate(run.device))
                copy_blocks(self._library, self._staging, self._pool, spread)
