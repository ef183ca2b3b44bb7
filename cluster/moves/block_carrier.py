"""The engine's end of moves: has a group's ranks give blocks to another group's, or fetch them.

One connection to each rank's door, beside the one for steps. Rank `r` fetches from rank `r`, all at
the same time; what is there is what every rank has. Knows neither requests nor costs. Units:
blocks, bytes, seconds.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from blockyard.cluster.moves.door_messages import (
    DoorToEngine,
    Fetch,
    Fetched,
    Give,
    Given,
    Leave,
    RankDoor,
    Withdraw,
)
from blockyard.cluster.wire import Codec, Connection, Endpoint, WireError, connect

__all__ = ["BlockCarrier", "CarrierGone", "Portion"]

Key = TypeVar("Key")
Answer = TypeVar("Answer", Given, Fetched)


class CarrierGone(Exception):
    """A rank's door has closed: nobody knows what becomes of the blocks that it was to move."""


@dataclass(frozen=True, slots=True)
class Portion:
    """What one fetch brought.

    Attributes:
        blocks: that every rank has, in order.
        num_bytes: on all ranks; `rank_bytes` on the one with most.
        waited, seconds: of the slowest: until the first byte was ready, and from there on.
        error: why no more can be had; empty if it can.
    """

    blocks: int
    num_bytes: int
    rank_bytes: int
    waited: float
    seconds: float
    error: str


class BlockCarrier:
    """Of one group, from when it was formed until it is formed anew.

    Make it with `BlockCarrier.connect`.
    """

    def __init__(
        self, connections: Sequence[Connection[DoorToEngine]], doors: Sequence[RankDoor]
    ) -> None:
        self.doors = tuple(doors)
        """Where other groups fetch blocks, in rank order."""
        self._connections = connections
        self._tickets = count(1)
        self._given: dict[bytes, list[asyncio.Future[Given]]] = {}
        self._fetched: dict[int, list[asyncio.Future[Fetched]]] = {}
        self.on_gone: Callable[[str], None] = lambda reason: None
        """Called when a door closes by itself."""
        self._open = True
        self._readers = [
            asyncio.create_task(self._read(rank, connection), name=f"block-door-{rank}")
            for rank, connection in enumerate(connections)
        ]

    @classmethod
    async def connect(cls, doors: Sequence[tuple[Endpoint, RankDoor]]) -> "BlockCarrier":
        """Connect to every rank's door, in rank order.

        Raises:
            OSError: a rank is not there.
        """
        codec: Codec[DoorToEngine] = Codec(DoorToEngine)
        connections: list[Connection[DoorToEngine]] = []
        try:
            for control, _ in doors:
                connections.append(await connect(control, codec))
        except BaseException:
            for connection in connections:
                await connection.close()
            raise
        return cls(connections, [door for _, door in doors])

    @property
    def open(self) -> bool:
        """Whether every rank's door is open."""
        return self._open

    def new_ticket(self) -> int:
        """For fetches from one parcel."""
        return next(self._tickets)

    async def give(self, key: bytes, host_ids: tuple[int, ...]) -> int:
        """Offer blocks on every rank; returns when no rank reads them any more: the bytes read.

        Raises:
            CarrierGone: nobody knows.
        """
        answers = self._ask(self._given, key)
        try:
            for connection in self._connections:
                connection.post(Give(key, host_ids))
            return sum(given.num_bytes for given in await asyncio.gather(*answers))
        finally:
            del self._given[key]

    def withdraw(self, key: bytes) -> None:
        """Nobody may have a parcel any more; `give` returns soon. Safe twice."""
        if self._open:
            for connection in self._connections:
                connection.post(Withdraw(key))

    async def fetch(
        self,
        ticket: int,
        sources: Sequence[RankDoor],
        key: bytes,
        first: int,
        host_ids: tuple[int, ...],
        seconds: float,
    ) -> Portion:
        """Fetch a parcel's blocks from `first` on into these of every rank.

        Returns when no rank writes any more, which takes little longer than `seconds`.

        Raises:
            CarrierGone: nobody knows.
        """
        answers = self._ask(self._fetched, ticket)
        try:
            for connection, source in zip(self._connections, sources, strict=True):
                connection.post(Fetch(ticket, source, key, first, host_ids, seconds))
            fetched = await asyncio.gather(*answers)
        finally:
            del self._fetched[ticket]
        return Portion(
            blocks=min(each.blocks for each in fetched),
            num_bytes=sum(each.num_bytes for each in fetched),
            rank_bytes=max(each.num_bytes for each in fetched),
            waited=max(each.waited for each in fetched),
            seconds=max(each.seconds for each in fetched),
            error=next((each.error for each in fetched if each.error), ""),
        )

    def leave(self, ticket: int) -> None:
        """Nothing more is wanted; whoever gives may have the blocks back."""
        if self._open:
            for connection in self._connections:
                connection.post(Leave(ticket))

    async def close(self) -> None:
        """Hang up on the doors, which ends whatever moves."""
        self._open = False
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._fail("the group's doors are closed")
        await asyncio.gather(*(connection.close() for connection in self._connections))

    def _ask(
        self, table: dict[Key, list[asyncio.Future[Answer]]], key: Key
    ) -> list[asyncio.Future[Answer]]:
        if not self._open:
            raise CarrierGone("the group's doors are closed")
        loop = asyncio.get_running_loop()
        table[key] = [loop.create_future() for _ in self._connections]
        return table[key]

    async def _read(self, rank: int, connection: Connection[DoorToEngine]) -> None:
        reason = f"the door of rank {rank} has closed"
        try:
            while (message := await connection.receive()) is not None:
                match message:
                    case Given(key):
                        _settle(self._given.get(key), rank, message)
                    case Fetched(ticket):
                        _settle(self._fetched.get(ticket), rank, message)
        except WireError as error:
            reason = f"the door of rank {rank} spoke out of turn: {error}"
        if self._open:
            self._open = False
            self._fail(reason)
            self.on_gone(reason)

    def _fail(self, reason: str) -> None:
        asked: tuple[list[asyncio.Future[Any]], ...]
        asked = (*self._given.values(), *self._fetched.values())
        for answers in asked:
            for answer in answers:
                if not answer.done():
                    answer.set_exception(CarrierGone(reason))


def _settle(answers: list[asyncio.Future[Answer]] | None, rank: int, answer: Answer) -> None:
    if answers is not None and not answers[rank].done():
        answers[rank].set_result(answer)
