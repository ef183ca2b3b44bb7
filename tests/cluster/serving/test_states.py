"""A served model sleeps, wakes and gets other weights, by the commands that people have."""

import asyncio
import json
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from blockyard.cluster.client import ServerError
from blockyard.cluster.commands.start import free_port
from blockyard.protos import cluster_pb2
from blockyard.protos import generation_pb2 as pb
from blockyard.workers.witness_files import write_witness_files

pytestmark = pytest.mark.ray

PROMPT = list(range(2, 82))


@pytest.fixture(scope="module")
def http_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(
    serve_with: Any, tmp_path_factory: pytest.TempPathFactory, http_port: int
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("states")
    weights = folder / "weights" / "v2"
    weights.mkdir(parents=True)
    write_witness_files(weights)
    (folder / "elsewhere").mkdir()
    write_witness_files(folder / "elsewhere")
    with serve_with(
        folder,
        *("--model", "witness", "--blocks", "512", "--groups", "2"),
        *("--allow-admin", "--weights-root", str(folder / "weights")),
        *("--http-port", str(http_port)),
    ) as server:
        yield server


def web(http_port: int, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{http_port}{path}", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


async def test_sleep_other_weights_and_wake(
    server: Any,
    http_port: int,
    request_for: Callable[..., pb.GenerateRequest],
    oracle: Callable[[pb.GenerateRequest], list[int]],
) -> None:
    asked = request_for(PROMPT, 8)

    async with server.client() as client:

        async def found() -> int:
            answer = await client.generate(asked)
            assert list(answer.choices[0].token_ids) == oracle(asked)
            return int(answer.usage.cached_tokens)

        async with asyncio.timeout(60):
            while not await found():
                pass
        told = await server.command("sleep")
        assert told == "witness sleeps in 2 groups\n"
        assert (await client.model()).sleeping
        assert web(http_port, "/ready")[0] == 503
        assert web(http_port, "/health")[0] == 200
        assert web(http_port, "/is_sleeping")[1]["is_sleeping"] is True
        waiting = asyncio.create_task(found())
        async with asyncio.timeout(60):
            while not any(group.requests.waiting for group in await server.books(client)):
                pass

        with pytest.raises(ServerError, match="not below the directory of weights"):
            await client.call(
                "/blockyard.v1.Cluster/UpdateWeights",
                cluster_pb2.UpdateWeightsRequest(directory="../elsewhere"),
                cluster_pb2.ModelState,
            )
        assert not waiting.done()
        told = await server.command("update-weights", "v2")
        version = (await client.model()).weight_version
        assert version and told == f"witness is awake with weights {version} in 2 groups\n"
        assert await waiting == 0, "what old weights had computed was found"
        assert web(http_port, "/ready")[0] == 200

        long = [asyncio.create_task(client.generate(request_for([n], 900))) for n in range(4)]
        await server.command("sleep")
        assert await server.command("wake") == told
        for number, answer in enumerate(await asyncio.gather(*long)):
            expected = oracle(request_for([number], 900))
            assert list(answer.choices[0].token_ids) == expected
        await server.until_clean(client, 60)


async def test_a_group_that_is_replaced_has_the_weights_of_the_others(
    server: Any, request_for: Callable[..., pb.GenerateRequest]
) -> None:
    async with server.client() as client:
        before = {group.group_id for group in (await client.ledger()).groups}
        version = (await client.model()).weight_version
        (victim, *_) = server.find("ray::ServeReplica:blockyard:groups")
        victim.kill()
        async with asyncio.timeout(120):
            while len({g.group_id for g in (await client.ledger()).groups} - before) < 1:
                await asyncio.sleep(0.1)
        assert (await client.model()).weight_version == version
        told = await server.command("wake")
        assert told == f"witness is awake with weights {version} in 2 groups\n"
