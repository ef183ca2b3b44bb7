"""What an engine and the doors of its ranks tell each other, and two ranks' doors.

Values only. Blocks themselves are no messages: they follow an answer as plain bytes. Units: blocks,
bytes, seconds.
"""

import msgspec

__all__ = [
    "DoorToEngine",
    "EngineToDoor",
    "Fetch",
    "Fetched",
    "Give",
    "Given",
    "Giving",
    "Leave",
    "RankDoor",
    "Take",
    "Withdraw",
]


class RankDoor(msgspec.Struct, frozen=True, array_like=True):
    """Where other ranks fetch the blocks of one."""

    host: str
    port: int
    secret: bytes

    def __repr__(self) -> str:
        """Leave the secret out."""
        return f"RankDoor({self.host!r}, {self.port})"


class Give(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Engine to door: whoever names this parcel may have these host blocks. Answered by `Given`."""

    key: bytes
    host_ids: tuple[int, ...]


class Withdraw(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Engine to door: nobody may have that parcel any more."""

    key: bytes


class Fetch(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Engine to door: fetch a parcel's blocks from `first` on into these. Answered by `Fetched`.

    Fetches of one ticket come one after the other, from one door; `Leave` ends them.
    """

    ticket: int
    source: RankDoor
    key: bytes
    first: int
    host_ids: tuple[int, ...]
    seconds: float


class Leave(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Engine to door: nothing more is wanted of what a ticket fetches from."""

    ticket: int


class Given(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Door to engine: nobody reads that parcel's blocks any more; so many bytes were read."""

    key: bytes
    num_bytes: int


class Fetched(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Door to engine: so many blocks are there, in order, and this rank writes no more.

    `waited` is the time until the first byte was ready, `seconds` from there to the last. With an
    `error`, which is for the log, no more can be had.
    """

    ticket: int
    blocks: int
    num_bytes: int
    waited: float
    seconds: float
    error: str = ""


class Take(msgspec.Struct, frozen=True, array_like=True):
    """Rank to rank: send a parcel's blocks from `first` on, if both lay blocks out alike.

    They may not be there yet; they are waited for so long.
    """

    key: bytes
    layout: str
    first: int
    count: int
    seconds: float


class Giving(msgspec.Struct, frozen=True, array_like=True):
    """The answer: the blocks follow, or why they do not."""

    refused: str = ""


EngineToDoor = Give | Withdraw | Fetch | Leave
DoorToEngine = Given | Fetched
