"""In what order news of one step reaches those who read it."""

import asyncio

import pytest

from blockyard.cluster.engine_stream import EngineStream, first_words_first
from blockyard.scheduler.request import RequestUpdate


def make_stream(request_id: str) -> EngineStream:
    return EngineStream(request_id, range(1), lambda stream, choice: None)


def news(request_id: str, token: int) -> RequestUpdate:
    return RequestUpdate(request_id, (token,))


async def read(stream: EngineStream, log: list[str]) -> None:
    async for update in stream:
        log.extend(f"{update.request_id}:{token}" for token in update.token_ids)


async def test_a_first_token_is_read_before_the_next_tokens_of_others() -> None:
    streams = {name: make_stream(name) for name in ("early", "middle", "late")}
    log: list[str] = []
    readers = [asyncio.create_task(read(stream, log)) for stream in streams.values()]
    await asyncio.sleep(0)
    for token, names in enumerate((("early",), ("early", "middle"), ("early", "middle", "late"))):
        for update in first_words_first([news(name, token) for name in names], streams):
            streams[update.request_id].put(update)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    for reader in readers:
        reader.cancel()
    assert log == ["early:0", "middle:1", "early:1", "late:2", "early:2", "middle:2"]


@pytest.mark.parametrize("begun", [(), ("a",), ("b", "c"), ("a", "b", "c")])
def test_nothing_is_lost_and_everybody_keeps_its_place_otherwise(begun: tuple[str, ...]) -> None:
    async def ordered() -> list[str]:
        streams = {name: make_stream(name) for name in ("a", "b", "c")}
        for name in begun:
            streams[name].put(news(name, 0))
        # "x" is of nobody here any more: its news is passed on, to be dropped by who knows why.
        updates = [news(name, 1) for name in ("a", "x", "b", "c")]
        return [update.request_id for update in first_words_first(updates, streams)]

    order = asyncio.run(ordered())
    assert sorted(order) == ["a", "b", "c", "x"]
    fresh = [name for name in ("a", "b", "c") if name not in begun]
    assert order[: len(fresh)] == fresh
    assert [name for name in order if name not in fresh] == [
        name for name in ("a", "x", "b", "c") if name not in fresh
    ]
