"""API keys: who is let in, for which tenant, and how many requests at once."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from blockyard.cluster.grpc_front import GrpcFront
from blockyard.cluster.http_front import HttpFront
from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.api_keys import KeyRing, read_api_keys
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import cluster_pb2
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import FinishReason

KEY, OTHER = "k" * 16, "other-key-of-red-team"
GENERATE = "/blockyard.v1.Generation/Generate"
STREAM = "/blockyard.v1.Generation/GenerateStream"


@pytest.fixture
def keys(tmp_path: Path) -> KeyRing:
    file = tmp_path / "keys"
    file.write_text(f"# who may call\n\nblue {KEY} 1\nred\t{OTHER}\n")
    return KeyRing(read_api_keys(file))


@pytest.fixture
async def guarded(
    dispatcher: Any, tokenizers: dict[str, ModelTokenizer], keys: KeyRing
) -> AsyncIterator[Any]:
    front = GrpcFront(dispatcher, tokenizers, keys=keys)
    port = await front.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await front.stop(None)


@pytest.fixture
async def web(
    dispatcher: Any, tokenizers: dict[str, ModelTokenizer], keys: KeyRing
) -> AsyncIterator[Any]:
    front = HttpFront(dispatcher, tokenizers, keys=keys)
    port = await front.start("127.0.0.1", 0)
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield client
    await front.stop(None)


def _call(channel: Any, key: str | None, **fields: Any) -> Any:
    method = channel.unary_unary(
        GENERATE,
        request_serializer=pb.GenerateRequest.SerializeToString,
        response_deserializer=pb.GenerateResponse.FromString,
    )
    metadata = (("authorization", f"Bearer {key}"),) if key is not None else ()
    sampling = pb.SamplingParameters(**fields)
    return method(pb.GenerateRequest(prompt="a", sampling=sampling), metadata=metadata, timeout=60)


@pytest.mark.parametrize("key", [None, "wrong", KEY + "x", KEY[:-1]])
async def test_who_shows_no_key_is_not_let_in(
    guarded: Any, web: Any, dispatcher: Any, key: str | None
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _call(guarded, key)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    books = guarded.unary_unary(
        "/blockyard.v1.Cluster/GetLedger",
        request_serializer=cluster_pb2.GetLedgerRequest.SerializeToString,
        response_deserializer=cluster_pb2.LedgerResponse.FromString,
    )
    with pytest.raises(grpc.aio.AioRpcError) as closed:
        await books(cluster_pb2.GetLedgerRequest(), timeout=60)
    assert closed.value.code() is grpc.StatusCode.UNAUTHENTICATED
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    for path in ("/v1/completions", "/tokenize"):
        answer = await web.post(path, json={"prompt": "a"}, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["type"] == "authentication_error"
    for path in ("/v1/models", "/metrics"):
        assert (await web.get(path, headers=headers)).status_code == 401
    assert not dispatcher.submitted


async def test_probes_need_no_key(guarded: Any, web: Any) -> None:
    stub = health_pb2_grpc.HealthStub(guarded)
    await stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert (await web.get("/health")).status_code == 200
    assert (await web.get("/ready")).status_code == 200


async def test_the_tenant_is_the_keys_and_a_clients_own_only_divides_it(
    guarded: Any, web: Any, dispatcher: Any
) -> None:
    dispatcher.script = [[65], FinishReason.STOP]
    await _call(guarded, KEY)
    await _call(guarded, OTHER, tenant="blue")
    body = {"prompt": "a"}
    answer = await web.post(
        "/v1/completions", json=body, headers={"authorization": f"bearer {OTHER}"}
    )
    assert answer.status_code == 200
    chat = {"messages": [{"role": "user", "content": "a"}], "stream": True}
    answer = await web.post(
        "/v1/chat/completions", json=chat, headers={"authorization": f"Bearer {KEY}"}
    )
    assert answer.status_code == 200
    tenants = [spec.tenant for _, spec in dispatcher.submitted]
    assert tenants == ["blue", "red/blue", "red", "blue"]


async def test_a_tenant_has_as_many_live_as_it_may(guarded: Any, web: Any, dispatcher: Any) -> None:
    dispatcher.script = [[65], "hang"]
    stream = guarded.unary_stream(
        STREAM,
        request_serializer=pb.GenerateRequest.SerializeToString,
        response_deserializer=pb.GenerateChunk.FromString,
    )
    metadata = (("authorization", f"Bearer {KEY}"),)
    live = stream(pb.GenerateRequest(prompt="a"), metadata=metadata, timeout=60)
    await live.read()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _call(guarded, KEY)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    dispatcher.script = [[65], FinishReason.STOP]
    await _call(guarded, OTHER)
    live.cancel()
    await dispatcher.streams[0].aborted.wait()
    answer = None
    while answer is None:  # the call is over a moment after its request
        try:
            answer = await _call(guarded, KEY)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert answer.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has none"),
        ("# nothing\n", "has none"),
        ("blue\n", "line 1"),
        (f"\nblue {KEY} many\n", "line 2"),
        (f"blue {KEY} 0\n", "at least 1"),
        ("blue short\n", "at least 16"),
        (f"b/l {KEY}\n", "line 1"),
        (f"blue {KEY} 1 root\n", "too many words"),
        ("blue admin\n", "at least 16"),
        (f"blue {KEY}\nred {KEY}\n", "twice"),
    ],
)
def test_files_that_are_refused_say_where_and_not_the_key(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ValueError, match=words) as refused:
        read_api_keys(file)
    assert KEY not in str(refused.value)


def test_administrators_are_named_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"blue {KEY} 3 admin\nred {OTHER} admin\ngreen {KEY}{KEY} 2\n")
    found = [(key.tenant, key.max_live, key.is_admin) for key in read_api_keys(file)]
    assert found == [("blue", 3, True), ("red", None, True), ("green", 2, False)]


@pytest.mark.parametrize("lines", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_second_key_of_a_tenant_takes_no_limit_away(
    tmp_path: Path, lines: tuple[int, ...]
) -> None:
    file, written = (
        tmp_path / "keys",
        (f"blue {KEY} 1", f"blue {OTHER} admin", f"blue {KEY}{KEY} 2"),
    )
    file.write_text("\n".join(written[number] for number in lines))
    ring = KeyRing(read_api_keys(file))
    with ring.live("blue"), pytest.raises(ApiError, match="1 requests"), ring.live("blue"):
        pass


def test_counts_end_with_their_requests(keys: KeyRing) -> None:
    for _ in range(3):
        with keys.live("blue"), pytest.raises(ApiError) as full, keys.live("blue"):
            pass
        assert full.value.code is ApiCode.RESOURCE_EXHAUSTED
    assert KeyRing().tenant_of(None) == ""
