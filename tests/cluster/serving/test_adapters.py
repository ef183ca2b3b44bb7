"""Adapters of a served model, named at start and loaded later, by the commands that people have."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blockyard.cluster.client import ServerError
from blockyard.protos import generation_pb2 as pb
from blockyard.workers.adapter_description import describe_adapter
from blockyard.workers.fake import witness_generate

pytestmark = pytest.mark.ray

PROMPT = list(range(2, 82))
VOCABULARY = 259


def write_adapter(folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(content)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for number, name in enumerate(("first", "v1", "v2")):
        write_adapter(folder / name, bytes([number]))
    return folder


@pytest.fixture(scope="module")
def server(serve_with: Any, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with serve_with(
        tmp_path_factory.mktemp("adapted"),
        *("--model", "witness", "--blocks", "512", "--groups", "2"),
        *("--lora", f"first={root / 'first'}", "--lora-root", str(root), "--allow-admin"),
    ) as server:
        yield server


async def test_o05_adapters_over_the_life_of_a_deployment(
    server: Any, root: Path, request_for: Callable[..., pb.GenerateRequest]
) -> None:
    async with server.client() as client:

        async def answer(name: str, files: str, count: int = 8) -> int:
            asked = request_for(PROMPT, count)
            asked.model = name
            told = await client.generate(asked)
            used = describe_adapter(root / files, name, 16).adapter_id
            expected = witness_generate(PROMPT, count, VOCABULARY, adapter=used)
            assert list(told.choices[0].token_ids) == expected
            return int(told.usage.cached_tokens)

        assert await answer("first", "first") == 0
        told = await server.command("load-adapter", "a", "v1")
        version = describe_adapter(root / "v1", "a", 16).version
        assert told == f"a is served, rank 4, version {version}\n"
        assert [each.name for each in (await client.model()).adapters] == ["first", "a"]
        assert await answer("a", "v1") == 0
        long = [asyncio.create_task(answer("a", "v1", 900)) for _ in range(4)]
        async with asyncio.timeout(60):
            while sum(group.requests.running for group in await server.books(client)) < 4:
                pass
        assert await server.command("unload-adapter", "a") == "a is served no more\n"
        with pytest.raises(ServerError, match="served: witness, first"):
            await answer("a", "v1")
        await server.command("load-adapter", "a", "v2")
        assert await answer("a", "v2") == 0
        await asyncio.gather(*long)

        # Whoever takes a lost group's place has what the others have.
        before = {group.group_id for group in (await client.ledger()).groups}
        (victim, *_) = server.find("ray::ServeReplica:blockyard:groups")
        victim.kill()
        async with asyncio.timeout(120):
            while len({g.group_id for g in (await client.ledger()).groups} - before) < 1:
                await asyncio.sleep(0.1)
        for _ in range(6):
            await asyncio.gather(answer("a", "v2"), answer("first", "first"))
        await server.until_clean(client, 60)
