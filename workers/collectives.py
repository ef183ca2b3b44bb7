"""What the ranks of a group tell each other within a step: sums, pieces of logits, tokens.

A `Communicator` outlives its transports: when a rank is lost, those that remain join the next
generation with the same object, and the model that holds it never knows. Before it has joined it
stands alone: a sum is its own part, so that a rank can measure its steps without the others.
Knows no model. Units: seconds.
"""

import torch

from blockyard.workers.config import Formation
from blockyard.workers.process_group import ProcessGroupTransport
from blockyard.workers.shared_memory import SharedMemoryTransport, stores_are_ordered
from blockyard.workers.transport import Transport

__all__ = ["TRANSPORTS", "Communicator", "choose_transport"]

TRANSPORTS = ("shm", "gloo", "nccl")
"""Shared memory: CPU ranks on one machine. gloo: CPU ranks on many. nccl: GPUs."""

TIMEOUT_SECONDS = 300.0
"""How long a rank waits for a peer that lives and does not come."""


def choose_transport(device: str, hosts: list[str]) -> str:
    """What carries the collectives of ranks with this device on these machines."""
    if device.startswith("cuda"):
        return "nccl"
    return "shm" if len(set(hosts)) == 1 and stores_are_ordered() else "gloo"


class Communicator:
    """One rank's end of its group.

    Attributes:
        rank, size: see below.
        generation: of the group that it joined last; 0 before the first.

    Args:
        rank, size: its place among how many.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        if not 0 <= rank < size:
            raise ValueError(f"rank is {rank}; it must be at least 0 and below {size}")
        self.rank = rank
        self.size = size
        self.generation = 0
        self._opened: Transport | None = None
        self._transport: Transport | None = None

    @property
    def joined(self) -> bool:
        """Whether collectives reach all ranks; always so for one that is alone."""
        return self.size == 1 or self._transport is not None

    def open(
        self, transport: str, generation: int, host: str, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> Formation:
        """Prepare the place where a generation meets; rank 0 does this, then joins like all.

        Args:
            transport: one of `TRANSPORTS`.
            generation: higher than any before.
            host: this machine's address for its peers.
            timeout_seconds: how long to wait for a peer that lives and does not come.
        """
        self.leave()
        if transport == "shm":
            self._opened = SharedMemoryTransport.create(self.size, timeout_seconds)
        else:
            self._opened = ProcessGroupTransport.create(transport, self.size, host, timeout_seconds)
        return Formation(transport, self._opened.address, generation, self.size)

    def join(self, formation: Formation, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Meet the other ranks; returns when all are there.

        Raises:
            PeerLost: somebody died or did not come in time.
        """
        if formation.size != self.size:
            raise ValueError(f"{formation.size} ranks meet, but this one is of {self.size}")
        transport, self._opened = self._opened, None
        self.leave()
        self._opened = transport or self._attach(formation, timeout_seconds)
        try:
            self._opened.meet()
        except BaseException:
            self.leave()
            raise
        self._transport, self._opened = self._opened, None
        self.generation = formation.generation

    def leave(self) -> None:
        """Stand alone from now on. Safe to call again."""
        for transport in (self._opened, self._transport):
            if transport is not None:
                transport.close()
        self._opened = self._transport = None

    def abort(self) -> None:
        """Wake this rank out of a collective that another thread is in; it raises `PeerLost`."""
        transport = self._transport or self._opened
        if transport is not None:
            transport.abort()

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, in place where the tensor is contiguous."""
        if self._transport is None:
            return tensor
        tensor = tensor.contiguous()
        self._transport.all_reduce(tensor)
        return tensor

    def gather_columns(self, tensor: torch.Tensor) -> torch.Tensor:
        """Pieces `[..., width]` of equal width side by side on rank 0; elsewhere the own piece."""
        if self.size == 1:
            return tensor
        if self._transport is None:
            return torch.cat([tensor] * self.size, dim=-1) if self.rank == 0 else tensor
        pieces = self._transport.gather(tensor.contiguous())
        return tensor if pieces is None else torch.cat(pieces.unbind(), dim=-1)

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's tensor, in place where the tensor is contiguous."""
        if self._transport is not None:
            tensor = tensor.contiguous()
            self._transport.broadcast(tensor)
        return tensor

    def _attach(self, formation: Formation, timeout_seconds: float) -> Transport:
        if formation.transport == "shm":
            return SharedMemoryTransport.attach(
                formation.address, self.rank, self.size, timeout_seconds
            )
        return ProcessGroupTransport.attach(
            formation.transport, formation.address, self.rank, self.size, timeout_seconds
        )
