"""One request as whoever sent it may ask after it, and the messages for that. Values only.

They are on the channels of an ingress, see `messages.py`.
"""

from dataclasses import dataclass

import msgspec

from blockyard.scheduler.explain import Explanation

__all__ = ["AskRequests", "AskUnplaced", "RequestsAnswer", "ServedRequest", "UnplacedAnswer"]


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request that was found.

    Attributes:
        name: what its client calls it, else the server's own name for it.
        explanations: of each choice that has not ended; where they name requests, they do by the
            names that clients know, and only those of the same tenant.
    """

    name: str
    explanations: tuple[Explanation, ...]


class AskRequests(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Tell me of a tenant's requests with this name, and end them if so; see `RequestDesk`."""

    ticket: int
    tenant: str
    name: str
    call_off: bool = False


class RequestsAnswer(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Those that were found, as they stood when asked for."""

    ticket: int
    requests: tuple[ServedRequest, ...]


class AskUnplaced(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """As `AskRequests`, of those that no group has at the moment.

    From one ingress to the central scheduler, and from there to all the others.
    """

    ticket: int
    tenant: str
    name: str
    call_off: bool = False


class UnplacedAnswer(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Those that were found, on the same way back."""

    ticket: int
    requests: tuple[ServedRequest, ...]
