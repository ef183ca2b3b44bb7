"""What is wrong with a request is told by a clear status that names the field; the next one works.

Health checks and reflection of the same port are here too.
"""

import json
import math
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from blockyard.cluster.client import GenerationClient, ServerError
from blockyard.protos import generation_pb2 as pb

pytestmark = pytest.mark.ray

GENERATE = "/blockyard.v1.Generation/Generate"
STREAM = "/blockyard.v1.Generation/GenerateStream"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
ADDRESS_OR_PATH = re.compile(r"/\w|\\|\d+\.\d+\.\d+\.\d+|localhost|:\d{2,5}\b|0x[0-9a-f]{6}|\.py\b")
"""What the server has no reason to tell a client."""

Parameters = pb.SamplingParameters


def with_parameters(**values: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt="a", sampling=Parameters(**values))


def of_tokens(*token_ids: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(tokens=pb.TokenIds(ids=token_ids))


def from_a_newer_client() -> pb.GenerateRequest:
    """A request whose sampling parameters have a field of number 99."""
    parameters = Parameters()
    parameters.MergeFromString(b"\x98\x06\x01")
    return pb.GenerateRequest(prompt="a", sampling=parameters)


BAD: dict[str, tuple[pb.GenerateRequest, str]] = {
    "nothing at all": (pb.GenerateRequest(), "prompt"),
    "empty prompt": (pb.GenerateRequest(prompt=""), "prompt"),
    "no tokens": (pb.GenerateRequest(tokens=pb.TokenIds()), "tokens.ids"),
    "no messages": (pb.GenerateRequest(chat=pb.ChatMessages()), "chat.messages"),
    "nothing said": (
        pb.GenerateRequest(
            chat=pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=" \n")])
        ),
        "chat.messages[0].content",
    ),
    "role that is none": (
        pb.GenerateRequest(chat=pb.ChatMessages(messages=[pb.ChatMessage(role="<|x|>")])),
        "chat.messages[0].role",
    ),
    "prompt as long as the context": (pb.GenerateRequest(prompt="a" * 4096), "prompt"),
    "tokens as many as the context": (of_tokens(*[1] * 4096), "tokens.ids"),
    "more answer than fits": (
        pb.GenerateRequest(prompt="a" * 4000, sampling=Parameters(max_tokens=97)),
        "sampling.max_tokens",
    ),
    "5 MB of text": (pb.GenerateRequest(prompt="word " * 1_000_000), "prompt"),
    "token id one too high": (of_tokens(1, 259), "tokens.ids[1]"),
    "token id below 0": (of_tokens(-1), "tokens.ids[0]"),
    "request id of spaces": (pb.GenerateRequest(prompt="a", request_id=" "), "request_id"),
    "temperature that is no number": (
        with_parameters(temperature=math.nan),
        "sampling.temperature",
    ),
    "temperature without end": (with_parameters(temperature=math.inf), "sampling.temperature"),
    "temperature below 0": (with_parameters(temperature=-0.5), "sampling.temperature"),
    "top_p that is no number": (with_parameters(top_p=math.nan), "sampling.top_p"),
    "top_p of 0": (with_parameters(top_p=0), "sampling.top_p"),
    "top_k below 0": (with_parameters(top_k=-1), "sampling.top_k"),
    "1,000 stops": (with_parameters(stop=[f"s{n}" for n in range(1000)]), "sampling.stop"),
    "empty stop": (with_parameters(stop=["ok", ""]), "sampling.stop[1]"),
    "max_tokens of 0": (with_parameters(max_tokens=0), "sampling.max_tokens"),
    "max_tokens below 0": (with_parameters(max_tokens=-(2**62)), "sampling.max_tokens"),
    "min_tokens above max_tokens": (
        with_parameters(min_tokens=9, max_tokens=8),
        "sampling.min_tokens",
    ),
    "too many answers": (with_parameters(n=17), "sampling.n"),
    "log probabilities": (with_parameters(logprobs=21), "sampling.logprobs"),
    "tenant": (with_parameters(tenant="me and you"), "sampling.tenant"),
    "field of the future": (from_a_newer_client(), "sampling"),
}


@pytest.fixture(scope="module")
def server(serve_with: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("serve")
    logging = ("--log-level", "debug", "--log-format", "json", "--log-file", str(folder / "log"))
    with serve_with(folder, "--model", "witness", *logging) as running:
        yield running


@pytest.fixture
async def channel(server: Any) -> AsyncIterator[Any]:
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(server.address, options=options) as channel:
        yield channel


@pytest.fixture
async def assert_it_works(
    client: GenerationClient,
    request_for: Callable[..., pb.GenerateRequest],
    answer_of: Any,
    oracle: Callable[[pb.GenerateRequest], list[int]],
) -> Callable[[], Any]:
    async def works() -> None:
        good = request_for([5, 6, 7], 8)
        assert list((await client.generate(good)).token_ids) == oracle(good)
        assert (await answer_of(client, good)).tokens == oracle(good)

    return works


async def refusals(client: GenerationClient, request: pb.GenerateRequest) -> list[ServerError]:
    """How a request is refused when whole and when streamed."""
    with pytest.raises(ServerError) as whole:
        await client.generate(request)
    with pytest.raises(ServerError) as streamed:
        async for _ in client.stream(request):
            pass
    return [whole.value, streamed.value]


@pytest.mark.parametrize("name", BAD)
async def test_bad_requests_are_refused_by_field(
    client: GenerationClient, assert_it_works: Any, name: str
) -> None:
    request, field = BAD[name]
    for refusal in await refusals(client, request):
        assert (refusal.code, refusal.field) == ("INVALID_ARGUMENT", field)
        assert refusal.message.startswith(f"{field}: ")
        assert not ADDRESS_OR_PATH.search(refusal.message), refusal.message
        assert len(refusal.message) < 300
    await assert_it_works()


async def test_an_unknown_model_is_not_found(
    client: GenerationClient, assert_it_works: Any
) -> None:
    for name in ("gpt-9", "../../etc/passwd"):
        for refusal in await refusals(client, pb.GenerateRequest(model=name, prompt="a")):
            assert (refusal.code, refusal.field) == ("NOT_FOUND", "model")
            assert refusal.message == f"model: {name!r} is not served here; served: witness"
    with pytest.raises(ServerError, match="name: 'gpt-9' is not served"):
        await client.model("gpt-9")
    await assert_it_works()


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x1a\x02\xff\xfe", b"\x1a\x7fshort"])
async def test_bytes_that_are_no_message(
    channel: Any, assert_it_works: Any, garbage: bytes
) -> None:
    calls = [channel.unary_unary(GENERATE)(garbage), channel.unary_stream(STREAM)(garbage).read()]
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        words = "request: not a valid blockyard.v1.GenerateRequest message"
        assert caught.value.details() == words
    await assert_it_works()


async def test_a_message_over_the_limit(channel: Any, assert_it_works: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(GENERATE)(bytes(17 * 2**20))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await assert_it_works()


async def test_bytes_that_are_no_grpc(server: Any, assert_it_works: Any) -> None:
    host, port = server.address.split(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64, b""):
        with socket.create_connection((host, int(port)), timeout=10) as plain:
            plain.sendall(garbage)
    await assert_it_works()


async def test_nothing_is_left_of_refused_requests(server: Any, client: GenerationClient) -> None:
    await server.until_clean(client, 60)
    assert all(group.stalled_steps == 0 for group in await server.books(client))


async def test_health(channel: Any) -> None:
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    for service in ("", "blockyard.v1.Generation", "blockyard.v1.Cluster"):
        answer = await check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await check(health_pb2.HealthCheckRequest(service="other"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_the_services(channel: Any) -> None:
    call = channel.stream_stream(
        REFLECTION,
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await call.read()
    await call.done_writing()
    names = {service.name for service in answer.list_services_response.service}
    assert names >= {
        "blockyard.v1.Generation",
        "blockyard.v1.Cluster",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


async def test_the_log_has_the_request_and_nothing_of_what_was_said(
    server: Any, client: GenerationClient, answer_of: Any
) -> None:
    prompt, name = "my-secret-diary", "log-me"
    request = pb.GenerateRequest(
        prompt=prompt, request_id=name, sampling=Parameters(max_tokens=9, ignore_eos=True)
    )
    async with grpc.aio.insecure_channel(server.address) as channel:
        call = channel.unary_unary(
            GENERATE,
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        answer = await call(request, metadata=(("authorization", "Bearer my-secret-key"),))
    log = server.output.with_name("log").read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    [line] = [each for each in lines if each.get("request_id", "").startswith(f"{name}.")]
    assert line["message"] == "request ended"
    assert line["outcome"] == "length"
    assert line["prompt_tokens"] == answer.usage.prompt_tokens
    assert line["answer_tokens"] == 9
    assert line["model"] == "witness"
    assert line["seconds"] >= line["first_token_seconds"] > 0
    # Whatever else these tests have sent is in it neither.
    for said in (prompt, "my-secret-key", answer.choices[0].text, "word word", "s999"):
        assert said not in log
    assert {"ingress", "group"} <= {
        part for each in lines for part in ("ingress", "group") if part in each["logger"]
    }
