"""Many streams on the default model: all at once, and dropped at random points."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from blockyard.cluster.client import GenerationClient
from blockyard.protos import generation_pb2 as pb
from blockyard.workers.catalog import DEFAULT_MODEL, default_cache_dir

pytestmark = [
    pytest.mark.ray,
    pytest.mark.model,
    pytest.mark.skipif(
        not (default_cache_dir() / DEFAULT_MODEL / "config.json").exists(),
        reason="the default model is not here; `blockyard model fetch` gets it",
    ),
]

PROMPTS = (
    "The capital of France is",
    "Water boils at",
    "Once upon a time there was",
    "def fibonacci(n):",
    "The three primary colours are",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,",
    "The opposite of hot is",
    "A recipe for bread: " + "mix flour, water and salt. " * 9,
    "The largest planet in the solar system is",
    "In 1969, humans first",
    "SELECT name FROM",
    "Roses are red,",
    "The list of months: January, February, March, " * 6,
    "Photosynthesis is the process by which",
    "To be, or not to be,",
)
COPIES = 4
NUM_TOKENS = 12
STREAM = "/blockyard.v1.Generation/GenerateStream"


@pytest.fixture(scope="module")
def server(serve_with: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with serve_with(tmp_path_factory.mktemp("serve")) as running:
        yield running


async def test_64_streams_get_the_right_text_while_the_books_add_up(
    server: Any,
    client: GenerationClient,
    request_for: Callable[..., pb.GenerateRequest],
    answer_of: Any,
    add_up: Callable[..., None],
) -> None:
    requests = [request_for(prompt, NUM_TOKENS) for prompt in PROMPTS]
    alone = [await answer_of(client, request) for request in requests]
    assert all(len(answer.tokens) == NUM_TOKENS and answer.text for answer in alone)
    assert "Paris" in alone[0].text

    done = asyncio.Event()
    seen: list[int] = []

    async def watch() -> None:
        while not done.is_set():
            for group in await server.books(client):
                seen.append(group.requests.running)
            await asyncio.sleep(0.05)

    async def look_by_command() -> dict[str, Any]:
        printed: dict[str, Any] = json.loads(await server.command("ledger", "--json"))
        return printed

    # Runs until the command has looked: the others may be done before it has started.
    held = asyncio.create_task(answer_of(client, request_for(PROMPTS[0], 2000)))
    watcher = asyncio.create_task(watch())
    command = asyncio.create_task(look_by_command())
    together = await asyncio.gather(
        *(answer_of(client, request) for request in requests for _ in range(COPIES))
    )
    done.set()
    await watcher
    printed = await command
    held.cancel()

    wrong = [
        (PROMPTS[number // COPIES], answer.text, alone[number // COPIES].text)
        for number, answer in enumerate(together)
        if answer != alone[number // COPIES]
    ]
    assert not wrong
    # Far more at once than Serve's default of 5, and the command saw some of them too.
    assert max(seen) >= COPIES * len(PROMPTS) // 2
    for group in printed["groups"]:
        add_up(group, group["block_size"])
    assert sum(sum(group["requests"].values()) for group in printed["groups"]) > 0
    await server.until_clean(client, 60)


async def test_200_dropped_streams_leave_the_books_clean(
    server: Any,
    client: GenerationClient,
    request_for: Callable[..., pb.GenerateRequest],
    answer_of: Any,
) -> None:
    afterwards = [request_for(prompt, NUM_TOKENS) for prompt in PROMPTS[:5]]
    alone = [await answer_of(client, request) for request in afterwards]
    chance = random.Random(4)
    at_once = asyncio.Semaphore(40)
    dropped_after: list[int] = []

    async def drop(number: int) -> None:
        # So many tokens that the books would stay full for minutes if nobody noticed.
        request = request_for(chance.choice(PROMPTS), 2000)
        num_chunks = chance.choice([0, 0, 1, 2, 4, 8])
        by_channel = chance.random() < 0.5
        patience = chance.random() * 0.2
        async with at_once, grpc.aio.insecure_channel(server.address) as channel:
            call = channel.unary_stream(
                STREAM,
                request_serializer=pb.GenerateRequest.SerializeToString,
                response_deserializer=pb.GenerateChunk.FromString,
            )(request)
            if num_chunks:
                for _ in range(num_chunks):
                    assert await call.read() is not grpc.aio.EOF
            else:
                # Anywhere between the connection's first byte and the first answer.
                await asyncio.wait([asyncio.ensure_future(call.wait_for_connection())], timeout=0.2)
                await asyncio.wait([asyncio.ensure_future(call.code())], timeout=patience)
            if not by_channel:
                call.cancel()
            dropped_after.append(num_chunks)

    await asyncio.gather(*(drop(number) for number in range(200)))
    assert len(dropped_after) == 200
    await server.until_clean(client, 60)
    assert [await answer_of(client, request) for request in afterwards] == alone
    await server.until_clean(client, 60)
