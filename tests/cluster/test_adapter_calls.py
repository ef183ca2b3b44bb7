"""Adapters loaded, asked for, listed and unloaded over gRPC and OpenAI's HTTP interface."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx2
import openai
import pytest

from blockyard.cluster.adapters.adapter_api import AdapterApi, AdapterLimits
from blockyard.cluster.grpc_front import GrpcFront
from blockyard.cluster.http_front import HttpFront
from blockyard.cluster.local_dispatcher import LocalDispatcher
from blockyard.cluster.request.admin import AdminDoor
from blockyard.cluster.request.api_keys import KeyRing, read_api_keys
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import cluster_pb2 as pb
from blockyard.protos import generation_pb2 as gen
from blockyard.scheduler.config import SchedulerConfig
from blockyard.workers.adapter_description import describe_adapter
from blockyard.workers.config import WorkerConfig
from blockyard.workers.description import ModelDescription
from blockyard.workers.fake import WitnessWorker, witness_generate

ADMIN, TENANT = "an-admins-own-key", "k" * 16
PROMPT = list(range(3, 40))


def write_adapter(folder: Path, content: bytes = b"1", rank: int = 4) -> Path:
    """The witness reads no weights: whatever is in the file is its version."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 8}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(content)
    return folder


@dataclass
class Server:
    """Both fronts of one model in this process."""

    root: Path
    http_url: str
    channel: grpc.aio.Channel
    dispatcher: LocalDispatcher
    vocabulary: int

    async def call(self, name: str, request: Any, answer: Any, key: str = ADMIN) -> Any:
        service = "Generation" if name == "Generate" else "Cluster"
        method = self.channel.unary_unary(
            f"/blockyard.v1.{service}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await method(request, metadata=(("authorization", f"Bearer {key}"),), timeout=60)

    async def load(self, name: str, path: str, key: str = ADMIN) -> pb.Adapter:
        request = pb.LoadAdapterRequest(name=name, path=path)
        answer: pb.Adapter = await self.call("LoadAdapter", request, pb.Adapter, key)
        return answer

    async def refusal(self, call: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call
        return failed.value.code(), failed.value.details() or ""

    async def generate(self, model: str) -> tuple[list[int], int]:
        sampling = gen.SamplingParameters(max_tokens=6, ignore_eos=True)
        request = gen.GenerateRequest(
            model=model, tokens=gen.TokenIds(ids=PROMPT), sampling=sampling
        )
        told = await self.call("Generate", request, gen.GenerateResponse)
        assert told.model == (model or "small")
        assert list(told.weight_versions) == ["started"]
        loaded = {each.name: each.version for each in self.dispatcher.adapters("small")}
        assert told.adapter_version == loaded.get(model, "")
        return list(told.choices[0].token_ids), told.usage.cached_tokens

    def wanted(self, name: str, content_of: str) -> list[int]:
        adapter = describe_adapter(self.root / content_of, name, 16)
        return witness_generate(PROMPT, 6, self.vocabulary, adapter=adapter.adapter_id)


@pytest.fixture
async def server(
    description: ModelDescription, tokenizer: ModelTokenizer, tmp_path: Path
) -> AsyncIterator[Server]:
    root = tmp_path / "adapters"
    for name, content in (("a1", b"1"), ("a2", b"2"), ("deep/b", b"3")):
        write_adapter(root / name, content)
    worker = WitnessWorker(
        WorkerConfig("", description.context_tokens, block_size=4, num_blocks=64, max_adapters=4),
        description.vocab_size,
    )
    limits = SchedulerConfig(description.context_tokens, block_size=4)
    dispatcher = await LocalDispatcher.start(description, worker, limits)
    (tmp_path / "keys").write_text(f"boss {ADMIN} admin\nblue {TENANT}\n")
    keys = KeyRing(read_api_keys(tmp_path / "keys"))
    tokenizers = {description.name: tokenizer}
    api = AdapterApi(
        dispatcher, AdminDoor(True, True), {description.name: AdapterLimits(str(root), 16)}
    )
    front = GrpcFront(dispatcher, tokenizers, keys=keys, adapters=api)
    port = await front.start("127.0.0.1:0")
    web = HttpFront(dispatcher, tokenizers, keys=keys, adapters=api)
    http_port = await web.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        url = f"http://127.0.0.1:{http_port}"
        yield Server(root, url, channel, dispatcher, description.vocab_size)
    await front.stop(None)
    await web.stop(None)
    await dispatcher.close()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.http_url}/v1", api_key=ADMIN, max_retries=0, timeout=60
    ) as made:
        yield made


async def test_o05_over_grpc(server: Server) -> None:
    told = await server.load("a", "a1")
    assert (told.name, told.rank) == ("a", 4)
    assert told.version == describe_adapter(server.root / "a1", "a", 16).version
    assert await server.generate("a") == (server.wanted("a", "a1"), 0)
    assert (await server.generate("a"))[1] == 36
    assert await server.generate("") == (witness_generate(PROMPT, 6, server.vocabulary), 0)
    code, message = await server.refusal(server.load("a", "a2"))
    assert (code, "unload it first" in message) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    asked = pb.UnloadAdapterRequest(name="a")
    assert await server.call("UnloadAdapter", asked, pb.Adapter) == told
    code, message = await server.refusal(server.generate("a"))
    assert (code, "served: small" in message) == (grpc.StatusCode.NOT_FOUND, True)
    await server.load("a", "a2")
    assert await server.generate("a") == (server.wanted("a", "a2"), 0)


async def test_models_are_told_with_their_adapters(
    server: Server, client: openai.AsyncOpenAI
) -> None:
    await server.load("a", "a1")
    await server.load("b", "deep/b")
    base = await server.call("GetModel", pb.GetModelRequest(), pb.ModelResponse)
    assert ([a.name for a in base.adapters], base.base_model) == (["a", "b"], "")
    adapted = await server.call("GetModel", pb.GetModelRequest(name="b"), pb.ModelResponse)
    assert (adapted.name, adapted.base_model) == ("b", "small")
    assert adapted.context_tokens == base.context_tokens
    listed = {model.id: model for model in (await client.models.list()).data}
    assert list(listed) == ["small", "a", "b"]
    assert (await client.models.retrieve("b")).model_extra == listed["b"].model_extra
    parents = [(model.model_extra or {}).get("parent") for model in listed.values()]
    assert parents == [None, "small", "small"]
    with pytest.raises(openai.NotFoundError, match="served: small, a, b"):
        await client.models.retrieve("c")


async def test_o05_by_openais_client(server: Server, client: openai.AsyncOpenAI) -> None:
    async def ask(model: str) -> tuple[str, int]:
        told = await client.completions.create(
            model=model, prompt=PROMPT, max_tokens=6, extra_body={"ignore_eos": True}
        )
        assert told.model == model and told.usage is not None
        loaded = {each.name: each.version for each in server.dispatcher.adapters("small")}
        made_by = f"started/{loaded[model]}" if model in loaded else "started"
        assert told.system_fingerprint == made_by
        details = told.usage.prompt_tokens_details
        return told.choices[0].text, (details.cached_tokens or 0) if details else 0

    async def post(route: str, **body: str) -> httpx2.Response:
        async with httpx2.AsyncClient(base_url=server.http_url, timeout=60) as plain:
            headers = {"authorization": f"Bearer {ADMIN}"}
            return await plain.post(f"/v1/{route}_lora_adapter", json=body, headers=headers)

    base, _ = await ask("small")
    loaded = await post("load", lora_name="a", lora_path=str(server.root / "a1"))
    assert (loaded.status_code, loaded.json()["lora_name"]) == (200, "a"), loaded.text
    first, found = await ask("a")
    assert found == 0 and first != base
    assert await ask("a") == (first, 36)
    streamed = await client.completions.create(
        model="a", prompt=PROMPT, max_tokens=6, stream=True, extra_body={"ignore_eos": True}
    )
    assert "".join([chunk.choices[0].text async for chunk in streamed if chunk.choices]) == first
    assert (await post("unload", lora_name="a")).status_code == 200
    with pytest.raises(openai.NotFoundError):
        await ask("a")
    assert (await post("load", lora_name="a", lora_path="a2")).status_code == 200
    second, found = await ask("a")
    assert found == 0 and second not in (first, base)
    refused = await post("load", lora_name="c", lora_path="../keys")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "lora_path"
    gone = await post("unload", lora_name="c")
    assert (gone.status_code, gone.json()["error"]["param"]) == (404, "lora_name")
    assert (await post("load", lora_name="c", lora_path="a1", colour="red")).status_code == 400


@pytest.mark.parametrize("key", [TENANT, "x" * 16])
async def test_only_admins_change_what_is_served(server: Server, key: str) -> None:
    code, _ = await server.refusal(server.load("a", "a1", key))
    wrong = grpc.StatusCode.UNAUTHENTICATED
    assert code is (grpc.StatusCode.PERMISSION_DENIED if key == TENANT else wrong)
    assert server.dispatcher.adapters("small") == ()


@pytest.mark.parametrize(
    ("name", "path", "field", "reason"),
    [
        ("a", "", "path", "empty"),
        ("a", "nothing", "path", "no directory"),
        ("a", "../keys", "path", "not below"),
        ("a", "/etc", "path", "not below"),
        ("a", ".", "path", "not below"),
        ("a", "a1/\0", "path", "not below"),
        ("a", "wide", "path", "rank is 64"),
        ("a", "linked", "path", "not below"),
        ("a", "deep", "path", "holds no adapter_config.json"),
        ("a b", "a1", "name", "no name for an adapter"),
        ("", "a1", "name", "no name for an adapter"),
        ("small", "a1", "name", "is served already"),
    ],
)
async def test_what_cannot_be_loaded_is_refused_without_telling_where(
    server: Server, tmp_path: Path, name: str, path: str, field: str, reason: str
) -> None:
    write_adapter(server.root / "wide", rank=64)
    outside = write_adapter(tmp_path / "outside")
    (server.root / "linked").symlink_to(outside)
    code, message = await server.refusal(server.load(name, path))
    taken = grpc.StatusCode.ALREADY_EXISTS
    assert code is (taken if "already" in reason else grpc.StatusCode.INVALID_ARGUMENT)
    assert field in message and reason in message
    assert str(tmp_path) not in message
    assert server.dispatcher.adapters("small") == ()


async def test_a_server_without_a_root_loads_none(
    server: Server, tokenizers: dict[str, ModelTokenizer]
) -> None:
    api = AdapterApi(server.dispatcher, AdminDoor(True), {"small": AdapterLimits(None, 16)})
    front = HttpFront(server.dispatcher, tokenizers, adapters=api)
    port = await front.start("127.0.0.1", 0)
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as plain:
        body = {"lora_name": "a", "lora_path": "a1"}
        told = await plain.post("/v1/load_lora_adapter", json=body)
    await front.stop(None)
    assert (told.status_code, "--lora-root" in told.text) == (400, True)
