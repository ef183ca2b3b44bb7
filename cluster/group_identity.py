"""One group as others know it: what it serves, how to reach its engine, and whether it is awake."""

import msgspec

from blockyard.cluster.states.model_state import STARTED, ModelState
from blockyard.workers.description import ModelDescription

__all__ = ["GroupIdentity"]


class GroupIdentity(msgspec.Struct, frozen=True, array_like=True):
    """One group and how to reach its engine."""

    group_id: str
    model: ModelDescription
    device: str
    dtype: str
    block_size: int
    host: str
    port: int
    secret: bytes
    state: ModelState = STARTED
    """What it is, as far as its engine has told."""
    resting: bool = False
    """Whether it computes nothing: it sleeps, or is becoming something else."""
    places: int = 0
    """Most requests in one of its steps; 0: not told."""
    max_waiting: int = 0
    """Most requests that may wait for one of them; 0: not told."""

    def __repr__(self) -> str:
        """Leave the secret out."""
        return f"GroupIdentity({self.group_id!r}, {self.model.name!r})"
