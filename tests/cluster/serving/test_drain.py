"""SIGTERM while streams run: they finish, newcomers are sent away, the exit is clean."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockyard.cluster.client import ServerError
from blockyard.protos import generation_pb2 as pb

pytestmark = pytest.mark.ray

NUM_STREAMS = 16
NUM_TOKENS = 3000


async def test_what_was_admitted_finishes_and_newcomers_are_refused(
    serve_with: Any,
    tmp_path: Path,
    request_for: Callable[..., pb.GenerateRequest],
    oracle: Callable[[pb.GenerateRequest], list[int]],
) -> None:
    # On a busy machine so many tokens take longer than a drain is given by default.
    options = ("--model", "witness", "--blocks", "8192", "--drain-seconds", "300")
    with serve_with(tmp_path, *options) as server:
        async with server.client() as client:
            requests = [request_for([n, 1], NUM_TOKENS) for n in range(NUM_STREAMS)]
            live = asyncio.Event()
            running = NUM_STREAMS

            async def follow(request: pb.GenerateRequest) -> list[int]:
                nonlocal running
                tokens: list[int] = []
                async for chunk in client.stream(request):
                    live.set()
                    tokens.extend(chunk.token_ids)
                running -= 1
                return tokens

            streams = asyncio.gather(*(follow(request) for request in requests))
            await live.wait()
            await client.generate(request_for([7], 1))
            server.terminate()

            refusal = None
            while refusal is None:
                try:
                    await client.generate(request_for([7], 1))
                except ServerError as error:
                    refusal = error
            assert running == NUM_STREAMS, "the streams ended too soon to prove anything"
            assert (refusal.code, refusal.field) == ("UNAVAILABLE", "")
            assert refusal.reached

            assert await streams == [oracle(request) for request in requests]
        server.wait_ended()
        assert "draining" in server.said() and "stopped" in server.said()
        assert "still ran" not in server.said()
