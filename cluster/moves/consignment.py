"""A request's blocks as its ingress hands them on, from the engine that it left to the next."""

import msgspec

from blockyard.cluster.moves.door_messages import RankDoor
from blockyard.scheduler.parcels import Parcel
from blockyard.scheduler.snapshot import RequestSnapshot

__all__ = ["Consignment", "Resume"]


class Consignment(msgspec.Struct, frozen=True, array_like=True):
    """What there is, and the doors of the ranks that have it, in rank order."""

    parcel: Parcel
    doors: tuple[RankDoor, ...]


class Resume(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Ingress to engine: go on with this request, which another engine served.

    Answered like `Submit`. What it had computed there may be had from there, or is computed again.
    """

    ticket: int
    snapshot: RequestSnapshot
    consignment: Consignment | None = None
