"""What carries the collectives of one generation of a group, whoever does it. Knows no model."""

from typing import Protocol

import torch

__all__ = ["PeerLost", "Transport"]


class PeerLost(Exception):
    """A rank of the group died or did not come; the group has to be formed anew."""


class Transport(Protocol):
    """One rank's end. All ranks make the same calls in the same order.

    Every call raises `PeerLost` when a peer dies or stays away, and after `abort`.
    """

    @property
    def address(self) -> str:
        """Where the others meet the rank that made this."""
        ...

    def meet(self) -> None:
        """Wait until all ranks are there; comes before everything else."""
        ...

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Replace a contiguous tensor by the sum over ranks, the same bits on every rank."""
        ...

    def gather(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Contiguous tensors of equal shape as `[ranks, ...]` on rank 0; elsewhere None."""
        ...

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Replace a contiguous tensor by rank 0's."""
        ...

    def abort(self) -> None:
        """Have the call that another thread is in, if any, and every later one raise."""
        ...

    def close(self) -> None:
        """Let go of what it holds. Safe to call twice."""
        ...
