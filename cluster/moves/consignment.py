"""A request's blocks as its ingress hands them on, from the engine that it left to the next."""

import msgspec

from blockyard.cluster.moves.door_messages import RankDoor
from blockyard.scheduler.parcels import Parcel

__all__ = ["Consignment"]


class Consignment(msgspec.Struct, frozen=True, array_like=True):
    """What there is, and the doors of the ranks that have it, in rank order."""

    parcel: Parcel
    doors: tuple[RankDoor, ...]
