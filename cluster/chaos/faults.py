"""What can be made to go wrong, as values. Units: seconds."""

from collections.abc import Callable
from enum import StrEnum

import msgspec

__all__ = ["DEFAULT_SECONDS", "MAX_SECONDS", "Disturb", "Disturbed", "Fault", "disturbed"]

DEFAULT_SECONDS = 2.0
MAX_SECONDS = 600.0


class Fault(StrEnum):
    """A fault, by the name that people give it."""

    KILL_RANK = "kill-rank"
    """A rank's process is killed."""
    STOP_RANK = "stop-rank"
    """A rank's process is stopped for good; its connections stay open."""
    STALL_RANK = "stall-rank"
    """A rank's process is stopped for some seconds."""
    DROP_RANK_WIRE = "drop-rank-wire"
    """The connection from an engine to a rank breaks."""
    DELAY_RANK_WIRE = "delay-rank-wire"
    """For some seconds an engine hears nothing from a rank; then all of it."""
    KILL_ENGINE = "kill-engine"
    """An engine's process is killed, and with it its group."""
    DROP_INGRESS_WIRE = "drop-ingress-wire"
    """The connections from the ingresses to an engine break."""
    FILL_HOST_POOL = "fill-host-pool"
    """For some seconds a group has no room to save blocks in host memory."""
    KILL_CENTRAL = "kill-central"
    """The central scheduler's process is killed."""


class Disturb(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Ingress to engine: make this go wrong. Engines that were not told to allow it refuse."""

    ticket: int
    fault: Fault
    rank: int
    seconds: float


class Disturbed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine's answer: what was done, or why not."""

    ticket: int
    done: str
    refused: str = ""


def disturbed(asked: Disturb, disturb: Callable[[Disturb], str] | None) -> Disturbed:
    """Have it go wrong by `disturb`; None: it is not allowed here."""
    if disturb is None:
        return Disturbed(asked.ticket, "", "this cluster was not started with faults allowed")
    try:
        return Disturbed(asked.ticket, disturb(asked))
    except LookupError as error:
        return Disturbed(asked.ticket, "", str(error.args[0]))
