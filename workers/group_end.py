"""A rank's end of its group: what start and repair do with it, and the end of who says nothing.

Those who compute together have a `Communicator`. Plain values, no torch.
"""

from typing import Protocol

from blockyard.workers.config import Formation

__all__ = ["SILENT", "GroupEnd", "SilentEnd"]

SILENT = "none"
"""The transport of a group that never meets."""


class GroupEnd(Protocol):
    """One rank's end of its group."""

    def open(self, transport: str, generation: int, host: str) -> Formation:
        """Prepare the place where a generation meets; rank 0 does this, then joins like all."""
        ...

    def join(self, formation: Formation) -> None:
        """Meet the other ranks; returns when all are there."""
        ...

    def abort(self) -> None:
        """Wake this rank out of a collective that another thread is in. Comes at any time."""
        ...


class SilentEnd:
    """The end of a rank that is alone and computes nothing: nobody is met, nothing is opened."""

    def open(self, transport: str, generation: int, host: str) -> Formation:
        """A meeting to which only this rank comes, so that nothing must carry it."""
        return Formation(SILENT, "", generation, 1)

    def join(self, formation: Formation) -> None:
        """Be there.

        Raises:
            ValueError: others are to come, too.
        """
        if formation.size != 1:
            raise ValueError(f"{formation.size} ranks meet, but this one is alone")

    def abort(self) -> None:
        """Nobody is in anything."""
