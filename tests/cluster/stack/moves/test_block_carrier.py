"""What ranks fetch side by side counts as far as all of them have it."""

import asyncio
from typing import Any

import pytest

from blockyard.cluster.moves.block_carrier import BlockCarrier, CarrierGone
from blockyard.cluster.moves.door_messages import Fetch, Fetched, RankDoor

pytestmark = pytest.mark.timeout(30)

DOORS = [RankDoor("127.0.0.1", 1 + rank, b"") for rank in range(2)]


class Door:
    """A rank's end of the connection, played by a test."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[Any] = asyncio.Queue()
        self.asked: list[Any] = []
        self.post = self.asked.append
        self.receive = self.told.get

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("slow", [0, 1])
async def test_blocks_are_there_when_every_rank_has_them(slow: int) -> None:
    ends: list[Any] = [Door(), Door()]
    carrier = BlockCarrier(ends, DOORS)
    fetching = asyncio.create_task(carrier.fetch(7, DOORS, b"key", 2, (4, 5, 6), 1.0))
    while not all(end.asked for end in ends):
        await asyncio.sleep(0.001)
    assert [end.asked for end in ends] == [
        [Fetch(7, door, b"key", 2, (4, 5, 6), 1.0)] for door in DOORS
    ]
    ends[1 - slow].told.put_nowait(Fetched(7, 3, 96, 0.1, 0.2))
    ends[slow].told.put_nowait(Fetched(7, 1, 40, 0.3, 0.4, "it took too long"))
    portion = await fetching
    assert (portion.blocks, portion.num_bytes, portion.rank_bytes) == (1, 136, 96)
    assert (portion.waited, portion.seconds) == (0.3, 0.4)
    assert portion.error == "it took too long"
    await carrier.close()


async def test_nobody_knows_what_a_closed_door_has_written() -> None:
    ends: list[Any] = [Door(), Door()]
    carrier = BlockCarrier(ends, DOORS)
    gone: list[str] = []
    carrier.on_gone = gone.append
    fetching = asyncio.create_task(carrier.fetch(7, DOORS, b"key", 0, (4,), 1.0))
    await asyncio.sleep(0)  # it has asked
    ends[0].told.put_nowait(Fetched(7, 1, 32, 0.1, 0.2))
    ends[1].told.put_nowait(None)
    with pytest.raises(CarrierGone, match="door of rank 1"):
        await fetching
    assert not carrier.open and len(gone) == 1
    with pytest.raises(CarrierGone):
        await carrier.give(b"key", (1,))
    await carrier.close()
