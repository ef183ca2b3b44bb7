"""Processes killed under load: what they ran goes on, or ends with a clear status."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from blockyard.cluster.chaos.chaos_client import ChaosRefused, disturb
from blockyard.cluster.client import GenerationClient, ServerError
from blockyard.protos import generation_pb2 as pb

pytestmark = pytest.mark.ray

NUM_STREAMS = 8
NUM_TOKENS = 4000
WORKER = "ray::WorkerActor"
CENTRAL = "ray::CentralActor"
ENGINE = "ray::ServeReplica:blockyard:groups"
INGRESS = "ray::ServeReplica:blockyard:ingress"


@pytest.fixture(scope="module")
def server(serve_with: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("serve")
    with serve_with(folder, "--model", "witness", "--blocks", "4096") as running:
        yield running


class Load:
    """Streams that have begun and have far to go."""

    def __init__(self, client: GenerationClient, requests: list[pb.GenerateRequest]) -> None:
        self._client = client
        self._begun = asyncio.Barrier(len(requests) + 1)
        self.streams = [asyncio.create_task(self._follow(request)) for request in requests]

    async def begun(self) -> None:
        await self._begun.wait()

    async def _follow(self, request: pb.GenerateRequest) -> list[int]:
        tokens: list[int] = []
        waited = False
        async for chunk in self._client.stream(request):
            tokens.extend(chunk.token_ids)
            if not waited:
                waited = True
                await self._begun.wait()
        return tokens


@pytest.fixture
async def load(client: GenerationClient, request_for: Callable[..., pb.GenerateRequest]) -> Load:
    return Load(client, [request_for([n, 3], NUM_TOKENS) for n in range(NUM_STREAMS)])


async def until_it_answers(
    client: GenerationClient, request: pb.GenerateRequest, seconds: float
) -> list[int]:
    """Ask until a group answers; refusals meanwhile must be of the kind that says: try again."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                return list((await client.generate(request)).token_ids)
            except ServerError as error:
                assert error.code == "UNAVAILABLE", error
                await asyncio.sleep(0.1)


async def test_a_killed_worker_is_replaced_and_no_stream_notices(
    server: Any,
    client: GenerationClient,
    load: Load,
    request_for: Callable[..., pb.GenerateRequest],
    oracle: Callable[[pb.GenerateRequest], list[int]],
) -> None:
    [before] = await server.books(client)
    await load.begun()
    [victim] = server.find(WORKER)
    victim.kill()
    async with asyncio.timeout(120):
        ends = await asyncio.gather(*load.streams)
    assert ends == [oracle(request_for([n, 3], NUM_TOKENS)) for n in range(NUM_STREAMS)]
    await server.until_clean(client, 60)
    [after] = await server.books(client)
    assert after.group_id == before.group_id
    assert [process.pid for process in server.find(WORKER)] != [victim.pid]


async def test_streams_of_the_only_engine_wait_for_its_successor(
    server: Any,
    client: GenerationClient,
    load: Load,
    request_for: Callable[..., pb.GenerateRequest],
    oracle: Callable[[pb.GenerateRequest], list[int]],
) -> None:
    [before] = await server.books(client)
    await load.begun()
    [victim] = server.find(ENGINE)
    victim.kill()

    with pytest.raises(ServerError) as refused:  # who was not served yet is told at once
        while True:
            await client.generate(request_for([1], 1))
    assert refused.value.code == "UNAVAILABLE"
    async with asyncio.timeout(120):
        ends = await asyncio.gather(*load.streams)
    assert ends == [oracle(request_for([n, 3], NUM_TOKENS)) for n in range(NUM_STREAMS)]
    await server.until_clean(client, 60)
    [after] = await server.books(client)
    assert after.group_id != before.group_id
    async with asyncio.timeout(20):
        while len(server.find(WORKER)) != 1:  # a worker that lost its engine ends too
            await asyncio.sleep(0.1)


async def test_a_killed_ingress_is_replaced_and_leaves_no_blocks_behind(
    server: Any,
    client: GenerationClient,
    load: Load,
    request_for: Callable[..., pb.GenerateRequest],
    oracle: Callable[[pb.GenerateRequest], list[int]],
) -> None:
    [before] = await server.books(client)
    await load.begun()
    [victim] = server.find(INGRESS)
    victim.kill()
    async with asyncio.timeout(10):
        ends = await asyncio.gather(*load.streams, return_exceptions=True)
    assert [getattr(end, "code", end) for end in ends] == ["UNAVAILABLE"] * NUM_STREAMS

    request = request_for([1, 2, 3], 20)
    async with server.client() as again:
        assert await until_it_answers(again, request, 60) == oracle(request)
        await server.until_clean(again, 60)
        [after] = await server.books(again)
    assert after.group_id == before.group_id
    assert after.step - before.step < NUM_TOKENS, "the streams nobody reads ran to their end"


async def test_serving_goes_on_while_the_central_scheduler_is_away(
    server: Any,
    client: GenerationClient,
    load: Load,
    request_for: Callable[..., pb.GenerateRequest],
    oracle: Callable[[pb.GenerateRequest], list[int]],
) -> None:
    await load.begun()
    [victim] = server.find(CENTRAL)
    victim.kill()

    async with asyncio.timeout(150):
        number = 0
        while not [process for process in server.find(CENTRAL) if process.pid != victim.pid]:
            number += 1
            request = request_for([number % 256, 5], 3)
            assert list((await client.generate(request)).token_ids) == oracle(request)
    assert number > 0
    whole = [oracle(request_for([n, 3], NUM_TOKENS)) for n in range(NUM_STREAMS)]
    assert await asyncio.gather(*load.streams) == whole
    # That the new one drains the groups is shown by the clean exit of this module's server.
    await server.until_clean(client, 60)


async def test_nobody_may_break_what_was_not_started_for_it(
    server: Any, client: GenerationClient
) -> None:
    with pytest.raises(ChaosRefused, match="--allow-chaos"):
        await disturb(client, "kill-rank")
    assert len(await server.books(client)) == 1
