"""The same services behind Ray Serve's own gRPC proxy, on the port of `--serve-grpc-port`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from blockyard.cluster.client import GenerationClient, ServerError
from blockyard.protos import generation_pb2 as pb
from blockyard.workers.fake import witness_generate

pytestmark = pytest.mark.ray

GENERATE = "/blockyard.v1.Generation/Generate"
STREAM = "/blockyard.v1.Generation/GenerateStream"
NUM_STREAMS = 64
WITNESS_VOCAB = 259


TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def collector(span_collector: Any) -> Iterator[Any]:
    with span_collector() as collecting:
        yield collecting


@pytest.fixture(scope="module")
def server(
    serve_with: Any, tmp_path_factory: pytest.TempPathFactory, collector: Any
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("serve")
    options = ("--model", "witness", "--blocks", "4096", "--trace-endpoint", collector.endpoint)
    with serve_with(folder, *options, proxied=True) as running:
        yield running


@pytest.fixture
async def proxied(server: Any) -> AsyncIterator[GenerationClient]:
    async with GenerationClient(server.proxy_address, 100) as client:
        yield client


@pytest.fixture
async def channel(server: Any) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(server.proxy_address) as channel:
        yield channel


async def test_both_ports_serve_the_same(
    server: Any,
    client: GenerationClient,
    proxied: GenerationClient,
    request_for: Callable[..., pb.GenerateRequest],
    answer_of: Any,
    oracle: Callable[[pb.GenerateRequest], list[int]],
) -> None:
    request = request_for([1, 2, 3], 50)
    answer = await proxied.generate(request)
    streamed = await answer_of(proxied, request)
    assert list(answer.token_ids) == streamed.tokens == oracle(request)
    assert answer.text == streamed.text == (await client.generate(request)).text
    assert (await proxied.model()) == (await client.model())
    [books] = await server.books(proxied)
    [same] = await server.books(client)
    assert books.group_id == same.group_id and books.blocks.total == 4096


async def test_several_answers_to_one_prompt(
    client: GenerationClient,
    proxied: GenerationClient,
    request_for: Callable[..., pb.GenerateRequest],
) -> None:
    request = request_for(list(range(40)), 30)
    request.sampling.n = 5
    expected = [
        witness_generate(range(40), 30, WITNESS_VOCAB, choice=choice) for choice in range(5)
    ]
    for served in (client, proxied):
        answer = await served.generate(request)
        assert [list(choice.token_ids) for choice in answer.choices] == expected
        assert answer.usage.completion_tokens == 5 * 30
        streamed: dict[int, list[int]] = {choice: [] for choice in range(5)}
        async for chunk in served.stream(request):
            streamed[chunk.choice].extend(chunk.token_ids)
        assert list(streamed.values()) == expected


async def test_spans_grow_from_the_callers_span(
    collector: Any, channel: Any, request_for: Callable[..., pb.GenerateRequest]
) -> None:
    metadata = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
    body = request_for([1, 2, 3], 5).SerializeToString()
    await channel.unary_unary(GENERATE)(body, metadata=metadata)
    assert [chunk async for chunk in channel.unary_stream(STREAM)(body, metadata=metadata)]

    def roots() -> list[Any]:
        ours = [span for span in list(collector.spans) if span.trace_id.hex() == TRACE]
        return [span for span in ours if span.name == "request"]

    async with asyncio.timeout(60):
        while len(roots()) < 2:
            await asyncio.sleep(0.05)
    assert [span.parent_span_id.hex() for span in roots()] == [PARENT, PARENT]


async def test_health(channel: Any) -> None:
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    answer = await check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await check(health_pb2.HealthCheckRequest(service="other"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_bad_parameter_is_refused_by_field(
    proxied: GenerationClient, request_for: Callable[..., pb.GenerateRequest]
) -> None:
    bad = pb.GenerateRequest(prompt="a", sampling=pb.SamplingParameters(top_p=7))
    words = "sampling.top_p: is 7.0; it must be above 0 and at most 1"
    with pytest.raises(ServerError) as whole:
        await proxied.generate(bad)
    with pytest.raises(ServerError) as streamed:
        async for _ in proxied.stream(bad):
            pass
    for refusal in (whole.value, streamed.value):
        # The proxy loses the details of failed calls, so the message alone must name the field.
        assert (refusal.code, refusal.message) == ("INVALID_ARGUMENT", words)
    assert len((await proxied.generate(request_for([1], 3))).token_ids) == 3


async def test_bytes_that_are_no_message(
    channel: Any, proxied: GenerationClient, request_for: Callable[..., pb.GenerateRequest]
) -> None:
    garbage = b"\xff\xff\xff"
    calls = [channel.unary_unary(GENERATE)(garbage), channel.unary_stream(STREAM)(garbage).read()]
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        words = "request: not a valid blockyard.v1.GenerateRequest message"
        assert caught.value.details() == words
    assert len((await proxied.generate(request_for([1], 3))).token_ids) == 3


async def test_64_streams_run_at_once(
    server: Any,
    client: GenerationClient,
    proxied: GenerationClient,
    request_for: Callable[..., pb.GenerateRequest],
    oracle: Callable[[pb.GenerateRequest], list[int]],
) -> None:
    requests = [request_for([n, 9], 800) for n in range(NUM_STREAMS)]

    async def follow(request: pb.GenerateRequest) -> list[int]:
        return [token async for chunk in proxied.stream(request) for token in chunk.token_ids]

    async with asyncio.timeout(90):
        streams = asyncio.gather(*(follow(request) for request in requests))
        # Serve's default would let five in.
        while (await server.books(client))[0].requests.running < NUM_STREAMS:
            assert not streams.done(), "they never all ran at once"
            await asyncio.sleep(0.02)
        assert await streams == [oracle(request) for request in requests]
    await server.until_clean(client, 60)


async def start_calls(server: Any, client: GenerationClient, method: Any, make: Any) -> list[Any]:
    """30 calls that would take 4,000 steps each, all of them running."""
    calls = [method(make([n, n], 4000).SerializeToString()) for n in range(30)]
    async with asyncio.timeout(60):
        while (await server.books(client))[0].requests.running < len(calls):
            await asyncio.sleep(0.02)
    return calls


async def test_a_client_that_leaves_frees_its_blocks(
    server: Any,
    channel: Any,
    client: GenerationClient,
    request_for: Callable[..., pb.GenerateRequest],
) -> None:
    await server.until_clean(client, 60)
    calls = await start_calls(server, client, channel.unary_unary(GENERATE), request_for)
    [before] = await server.books(client)
    for call in calls:
        call.cancel()
    await server.until_clean(client, 60)
    [after] = await server.books(client)
    assert after.step - before.step < 3000, "they ran on to their end"


async def test_clients_that_leave_their_streams_free_most_blocks_at_once(
    server: Any,
    channel: Any,
    client: GenerationClient,
    request_for: Callable[..., pb.GenerateRequest],
) -> None:
    # Serve's proxy forgets a stream whose client leaves in the very moment of a write: it is a few
    # in a hundred, and those run to their last token. A stream at the ingress's own port never is.
    await server.until_clean(client, 60)
    calls = await start_calls(server, client, channel.unary_stream(STREAM), request_for)
    [before] = await server.books(client)
    for call in calls:
        call.cancel()
    async with asyncio.timeout(60):
        while (books := (await server.books(client))[0]).requests.running > len(calls) // 2:
            await asyncio.sleep(0.02)
    assert books.step - before.step < 3000, "they ran on to their end"
    await server.until_clean(client, 60)
