"""The number of groups follows the load, down to none and back, and no stream notices."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from blockyard.cluster.client import GenerationClient
from blockyard.protos import generation_pb2 as pb

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

NUM_TOKENS = 4000
CHANGE_SECONDS = 120.0


@pytest.fixture(scope="module")
def server(serve_with: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    told = ["--model", "witness", "--blocks", "8192", "--max-running", "8", "--groups", "0:2"]
    quiet = ["--scale-quiet-seconds", "4", "--scale-idle-seconds", "4"]
    with serve_with(tmp_path_factory.mktemp("serve"), *told, *quiet) as running:
        yield running


async def until_groups(client: GenerationClient, count: int) -> None:
    """Wait until so many groups are there; those that go count until they have gone."""
    async with asyncio.timeout(CHANGE_SECONDS):
        while len((await client.ledger()).groups) != count:
            await asyncio.sleep(0.1)


async def test_groups_come_with_the_load_and_go_without_it(
    client: GenerationClient,
    request_for: Callable[..., pb.GenerateRequest],
    answer_of: Callable[..., Any],
    oracle: Callable[[pb.GenerateRequest], list[int]],
) -> None:
    wanted = True

    async def keep_asking(number: int, at_least_once: bool = True) -> int:
        """One stream after the other while they are wanted."""
        count = 0
        while wanted or (at_least_once and not count):
            request = request_for([number, count % 256], NUM_TOKENS)
            answer = await answer_of(client, request)
            assert answer.tokens == oracle(request)
            count += 1
        return count

    await until_groups(client, 1)
    load = [asyncio.create_task(keep_asking(number)) for number in range(24)]
    await until_groups(client, 2)
    wanted = False
    assert min(await asyncio.gather(*load)) >= 1

    # One reader stays: whatever it asks of the group that goes is finished there or elsewhere.
    wanted = True
    reader = asyncio.create_task(keep_asking(99))
    await until_groups(client, 1)
    wanted = False
    assert await reader >= 1

    await until_groups(client, 0)
    requests = [request_for([number, 7], 20) for number in range(5)]
    answers = await asyncio.gather(*(answer_of(client, request) for request in requests))
    assert [answer.tokens for answer in answers] == [oracle(request) for request in requests]
