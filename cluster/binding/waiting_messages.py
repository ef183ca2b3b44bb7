"""Messages about requests that wait for a group. Values only.

They are on the channel between an ingress and the central scheduler, see `messages.py`.
"""

import msgspec

from blockyard.cluster.waiting_room import Unplaced

__all__ = ["AskPlaces", "FromWaiting", "Places", "Queued", "Spent", "ToWaiting", "Withdraw"]


class Queued(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Central scheduler to ingress: no group can start it soon; it waits here until one can.

    Another answer with the same ticket follows.
    """

    ticket: int


class Withdraw(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Ingress to central scheduler: the request with that ticket is not wanted any more."""

    ticket: int


class Spent(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Ingress to central scheduler: so many tokens were produced for a tenant."""

    model: str
    priority: int
    tenant: str
    tokens: int


class AskPlaces(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Ingress to central scheduler: where do my requests with these tickets stand?

    With none it asks whether anybody is there.
    """

    ticket: int
    tickets: tuple[int, ...] = ()


class Places(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How many are served before each of those that wait, by ticket."""

    ticket: int
    places: dict[int, int]


FromWaiting = Unplaced | Withdraw | Spent | AskPlaces
ToWaiting = Queued | Places
