"""The same services behind HAProxy, which Ray Serve starts in place of its own proxy if told to."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from blockyard.cluster.client import GenerationClient, ServerError
from blockyard.protos import generation_pb2 as pb

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

GENERATE = "/blockyard.v1.Generation/Generate"
STREAM = "/blockyard.v1.Generation/GenerateStream"
NUM_STREAMS = 8
NUM_TOKENS = 1500
FILES = {
    "CONFIG_FILE_LOC": "haproxy.cfg",
    "SOCKET_PATH": "admin.sock",
    "SERVER_STATE_BASE": "",
    "SERVER_STATE_FILE": "server-state",
    "METRICS_SOCKET_PATH": "metrics.sock",
}
PORTS = ("HAPROXY_METRICS", "HAPROXY_STATS", "FALLBACK_PROXY_HTTP", "FALLBACK_PROXY_GRPC")


@pytest.fixture(scope="module")
def server(
    serve_with: Any, ports: Callable[[int], list[int]], tmp_path_factory: Any
) -> Iterator[Any]:
    """It is drained by the last test."""
    with (
        pytest.MonkeyPatch.context() as environment,
        # Sockets lie in it, so its name must be short.
        tempfile.TemporaryDirectory(prefix="by", dir="/tmp") as folder,
    ):
        environment.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
        environment.setenv("RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S", "1")
        for name, file in FILES.items():
            environment.setenv(f"RAY_SERVE_HAPROXY_{name}", str(Path(folder, file)))
        for name, port in zip(PORTS, ports(len(PORTS)), strict=True):
            environment.setenv(f"RAY_SERVE_{name}_PORT", str(port))
        options = ("--model", "witness", "--blocks", "8192", "--drain-seconds", "300")
        with serve_with(tmp_path_factory.mktemp("serve"), *options, proxied=True) as running:
            assert running.find_program("haproxy"), "it is Serve's own proxy"
            yield running


@pytest.fixture
async def proxied(server: Any) -> AsyncIterator[GenerationClient]:
    async with GenerationClient(server.proxy_address, 300) as client:
        yield client


@pytest.fixture
async def channel(server: Any) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(server.proxy_address) as channel:
        yield channel


async def test_a_refusal_names_the_field(proxied: GenerationClient) -> None:
    bad = pb.GenerateRequest(prompt="a", sampling=pb.SamplingParameters(top_p=7))
    with pytest.raises(ServerError) as refused:
        await proxied.generate(bad)
    words = "sampling.top_p: is 7.0; it must be above 0 and at most 1"
    assert (refused.value.code, refused.value.message) == ("INVALID_ARGUMENT", words)


@pytest.mark.parametrize("kind", ["whole answer", "stream"])
async def test_a_client_that_leaves_frees_its_blocks(
    server: Any, channel: Any, client: GenerationClient, request_for: Callable[..., Any], kind: str
) -> None:
    await server.until_clean(client, 60)
    method = channel.unary_stream(STREAM) if kind == "stream" else channel.unary_unary(GENERATE)
    calls = [method(request_for([n, n], NUM_TOKENS).SerializeToString()) for n in range(30)]
    async with asyncio.timeout(60):
        while (before := (await server.books(client))[0]).requests.running < len(calls):
            await asyncio.sleep(0.02)
    for call in calls:
        call.cancel()
    await server.until_clean(client, 60)
    [after] = await server.books(client)
    assert after.step - before.step < NUM_TOKENS // 2, "they ran on to their end"


async def test_a_drain_cuts_no_stream(
    server: Any,
    client: GenerationClient,
    proxied: GenerationClient,
    request_for: Callable[..., pb.GenerateRequest],
    oracle: Callable[[pb.GenerateRequest], list[int]],
) -> None:
    requests = [request_for([n, 1], NUM_TOKENS) for n in range(NUM_STREAMS)]
    running = NUM_STREAMS

    async def follow(request: pb.GenerateRequest) -> list[int]:
        nonlocal running
        tokens = [token async for chunk in proxied.stream(request) for token in chunk.token_ids]
        running -= 1
        return tokens

    streams = asyncio.gather(*(follow(request) for request in requests))
    async with asyncio.timeout(60):
        while (await server.books(client))[0].requests.running < NUM_STREAMS:
            await asyncio.sleep(0.02)
    server.terminate()
    refusal = None
    while refusal is None:
        try:
            await proxied.generate(request_for([7], 1))
        except ServerError as error:
            refusal = error
    assert running == NUM_STREAMS, "the streams ended too soon to prove anything"
    assert refusal.code == "UNAVAILABLE"
    assert await streams == [oracle(request) for request in requests]
    server.wait_ended()
    assert "still ran" not in server.said()
