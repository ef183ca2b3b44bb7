"""Collectives through shared memory: CPU ranks on one machine.

A file in memory holds, for each rank, a line with its counter and its process id, and two slots.
An operation has a number; its data goes to the slot of that number's parity, then the counter says
so. A rank enters an operation only when all have entered the one before, so nobody still reads the
slot it writes. Sums run in rank order: all ranks get the same bits. Units: bytes, seconds.
"""

import contextlib
import mmap
import os
import platform
import select
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from blockyard.workers.transport import PeerLost

__all__ = ["SharedMemoryTransport", "stores_are_ordered"]

FOLDER = Path("/dev/shm")
LINE_BYTES = 64
SLOT_BYTES = 1 << 20
"""What one rank hands over at once; longer tensors go in pieces."""

SPINS = 200
"""Looks at a peer's counter, giving the core away each time, before sleeping between looks."""

SHORTEST_SLEEP, LONGEST_SLEEP = 20e-6, 500e-6
LOOK_SECONDS = 0.05
"""How often a rank that waits looks whether its peers are alive."""

ATTACHED = 1
"""A counter starts here: the rank is there. Operations count on from it."""


def stores_are_ordered() -> bool:
    """Whether this machine shows a rank's stores to others in program order, with no fences."""
    return platform.machine() in ("x86_64", "AMD64") and FOLDER.is_dir()


class SharedMemoryTransport:
    """A `Transport` through a file in memory, which has no name any more once all are there."""

    def __init__(self, file: int, path: str, rank: int, size: int, timeout_seconds: float) -> None:
        self._path = path
        self._rank = rank
        self._size = size
        self._timeout_seconds = timeout_seconds
        try:
            memory = mmap.mmap(file, size * (LINE_BYTES + 2 * SLOT_BYTES))
        finally:
            os.close(file)
        self._words = memoryview(memory).cast("q")
        data = torch.frombuffer(memory, dtype=torch.uint8, offset=size * LINE_BYTES)
        self._slots = data.view(2, size, SLOT_BYTES)
        self._peers = [peer for peer in range(size) if peer != rank]
        self._alive = select.poll()
        self._handles: dict[int, int] = {}
        self._operation = ATTACHED
        self._lost: str | None = None

    @classmethod
    def create(cls, size: int, timeout_seconds: float) -> "SharedMemoryTransport":
        """Make the memory as rank 0.

        Raises:
            OSError: the machine has not enough shared memory.
        """
        if not stores_are_ordered():
            raise OSError(f"shared memory is not used between ranks on {platform.machine()}")
        file, path = tempfile.mkstemp(prefix="blockyard-", dir=FOLDER)
        try:
            # Taken now: a write to memory that is not there would kill the process.
            os.posix_fallocate(file, 0, size * (LINE_BYTES + 2 * SLOT_BYTES))
        except OSError:
            os.close(file)
            os.unlink(path)
            raise
        return cls(file, path, 0, size, timeout_seconds)

    @classmethod
    def attach(
        cls, address: str, rank: int, size: int, timeout_seconds: float
    ) -> "SharedMemoryTransport":
        """Open what rank 0 has made.

        Raises:
            PeerLost: it is not there any more.
        """
        try:
            file = os.open(address, os.O_RDWR)
        except FileNotFoundError:
            raise PeerLost("rank 0 has left the meeting") from None
        return cls(file, address, rank, size, timeout_seconds)

    @property
    def address(self) -> str:
        """Path of the file."""
        return self._path

    def meet(self) -> None:
        """Show that this rank is there and wait for the others."""
        self._words[self._rank * 8 + 1] = os.getpid()
        self._words[self._rank * 8] = ATTACHED
        self._wait(ATTACHED)
        for peer in self._peers:
            self._watch(peer)
        self._unlink()

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """See `Transport`."""
        for piece in self._pieces(tensor):
            slots = self._enter(piece)
            self._wait(self._operation)
            torch.add(slots[0], slots[1], out=piece)
            for slot in slots[2:]:
                piece.add_(slot)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """See `Transport`."""
        gathered = tensor.new_empty(self._size, *tensor.shape) if self._rank == 0 else None
        flat = gathered.view(self._size, -1) if gathered is not None else None
        begin = 0
        for piece in self._pieces(tensor):
            slots = self._enter(piece)
            if flat is not None:
                self._wait(self._operation)
                for rank, slot in enumerate(slots):
                    flat[rank, begin : begin + len(slot)] = slot
            begin += len(piece)
        return gathered

    def broadcast(self, tensor: torch.Tensor) -> None:
        """See `Transport`."""
        for piece in self._pieces(tensor):
            slots = self._enter(piece)
            if self._rank:
                self._wait(self._operation, (0,))
                piece.copy_(slots[0])

    def abort(self) -> None:
        """See `Transport`."""
        self._lost = "the group was given up"

    def close(self) -> None:
        """See `Transport`."""
        self.abort()
        self._unlink()
        for handle in self._handles:
            os.close(handle)
        self._handles.clear()
        self._alive = select.poll()

    def _pieces(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        if self._lost is not None:
            raise PeerLost(self._lost)
        flat = tensor.view(-1)
        most = SLOT_BYTES // tensor.element_size()
        return (flat[begin : begin + most] for begin in range(0, len(flat), most))

    def _enter(self, piece: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Begin the next operation with this data; the slots of all ranks, in rank order."""
        self._wait(self._operation)
        self._operation += 1
        slots: list[torch.Tensor] = []
        if piece is not None:
            used = self._slots[self._operation % 2, :, : piece.nbytes].view(piece.dtype)
            slots = list(used.unbind())
            slots[self._rank].copy_(piece)
        self._words[self._rank * 8] = self._operation
        return slots

    def _wait(self, operation: int, peers: tuple[int, ...] | None = None) -> None:
        """Until these peers, or all, have entered an operation."""
        words = self._words
        for peer in self._peers if peers is None else peers:
            spins = 0
            while words[peer * 8] < operation:
                spins += 1
                if spins > SPINS:
                    self._sleep_until(peer, operation)
                else:
                    os.sched_yield()

    def _sleep_until(self, peer: int, operation: int) -> None:
        began = looked = time.monotonic()
        pause = SHORTEST_SLEEP
        while self._words[peer * 8] < operation:
            if self._lost is not None:
                raise PeerLost(self._lost)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_SLEEP)
            now = time.monotonic()
            if now > looked + LOOK_SECONDS:
                looked = now
                self._look(peer, operation, now - began)

    def _look(self, peer: int, operation: int, waited_seconds: float) -> None:
        dead = [self._handles[handle] for handle, _ in self._alive.poll(0)]
        # Who is gone may have entered before it went.
        if dead and self._words[peer * 8] < operation:
            self._lost = f"rank {dead[0]} has died"
        elif waited_seconds > self._timeout_seconds:
            self._lost = f"rank {peer} did not come within {self._timeout_seconds:g} s"
        if self._lost is not None:
            raise PeerLost(self._lost)

    def _watch(self, peer: int) -> None:
        """Be told when a peer's process ends."""
        try:
            handle = os.pidfd_open(self._words[peer * 8 + 1])
        except ProcessLookupError:
            raise PeerLost(f"rank {peer} has died") from None
        self._handles[handle] = peer
        self._alive.register(handle, select.POLLIN)

    def _unlink(self) -> None:
        if self._rank == 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
