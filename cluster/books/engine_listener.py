"""Who wants to know what happens to requests in an engine, as a protocol.

An engine calls its listeners between two steps, so they are quick and keep their failures to
themselves.
"""

from collections.abc import Sequence
from typing import Protocol

from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.snapshot import RequestSnapshot

__all__ = ["EngineListener"]


class EngineListener(Protocol):
    """Told of every request from its arrival to its end."""

    def submitted(self, spec: RequestSpec) -> None:
        """A request was taken."""
        ...

    def resumed(self, snapshot: RequestSnapshot) -> None:
        """A request was taken that had produced something elsewhere."""
        ...

    def stepped(self, updates: Sequence[RequestUpdate]) -> None:
        """A step has ended with these updates."""
        ...

    def aborted(self, request_id: str, choice: int | None) -> None:
        """A request, or one choice, was ended from outside, or had ended already."""
        ...
