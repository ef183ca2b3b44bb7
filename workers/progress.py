"""How long work (download, conversion, load) tells how far it is.

A reporter is told of one stage at a time; whoever started the work decides how it looks. Knows no
terminal. Units: bytes.
"""

from typing import Protocol

__all__ = ["ProgressReporter", "SilentProgress"]


class ProgressReporter(Protocol):
    """Receives news of long work. Calls come from one thread."""

    def stage(self, name: str, total_bytes: int | None) -> None:
        """A new stage begins and the one before is over. None means that its size is unknown."""
        ...

    def advance(self, num_bytes: int) -> None:
        """So many more bytes of the current stage are done."""
        ...


class SilentProgress:
    """A reporter that shows nothing."""

    def stage(self, name: str, total_bytes: int | None) -> None:
        """Ignore the stage."""

    def advance(self, num_bytes: int) -> None:
        """Ignore the bytes."""
