"""Whatever breaks under 32 streams of all kinds, each goes on and tells what it would have told.

Two groups of a tiny model; the faults are those of `blockyard chaos`.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from blockyard.cluster.chaos.chaos_client import disturb
from blockyard.cluster.chaos.faults import Fault
from blockyard.cluster.client import GenerationClient, ServerError
from blockyard.protos import generation_pb2 as pb
from blockyard.workers.witness_files import write_witness_files

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

NUM_STREAMS = 32
NUM_TOKENS = 700
RECOVERY_SECONDS = 120.0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_witness_files(folder)
    torch.manual_seed(3)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=259,
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            initializer_range=0.6,
        )
    )
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def server(serve_with: Any, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    told = ["--model", str(tiny), "--groups", "2", "--blocks", "2600", "--host-blocks", "64"]
    more = ["--threads", "1", "--dtype", "float32", "--allow-chaos"]
    with serve_with(tmp_path_factory.mktemp("serve"), *told, *more) as running:
        yield running


def asked(number: int) -> pb.GenerateRequest:
    """One of six kinds."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": number},
        {"temperature": 0.8, "seed": number, "top_p": 0.9, "top_k": 40},
        {
            "temperature": 1.0,
            "seed": number,
            "repetition_penalty": 1.1,
            "frequency_penalty": 0.3,
            "presence_penalty": 0.2,
        },
        {"temperature": 1.0, "seed": number, "structure": pb.Structure(regex="([a-f]{3} ){200}")},
        {"temperature": 1.0, "seed": number, "stop": ["zq", "\x00\x01"]},
    ]
    kind = kinds[number % 6]
    # A structure says itself when an answer ends.
    sampling = pb.SamplingParameters(
        max_tokens=NUM_TOKENS, ignore_eos="structure" not in kind, **kind
    )
    prompt = [number, *((31 * n + number) % 256 for n in range(20))]
    return pb.GenerateRequest(tokens=pb.TokenIds(ids=prompt), sampling=sampling)


REQUESTS = [asked(number) for number in range(NUM_STREAMS)]


class Load:
    """All requests as streams."""

    def __init__(self, client: GenerationClient) -> None:
        self._client = client
        self.begun = asyncio.Event()
        self.num_begun = 0
        self.streams = [asyncio.create_task(self._follow(request)) for request in REQUESTS]

    async def _follow(self, request: pb.GenerateRequest) -> tuple[str, list[int], int]:
        text, reason = "", 0
        tokens: list[int] = []
        async for chunk in self._client.stream(request):
            if not tokens:
                self.num_begun += 1
                if self.num_begun == NUM_STREAMS:
                    self.begun.set()
            text += chunk.text
            tokens += chunk.token_ids
            reason = chunk.finish_reason
        return text, tokens, reason


@pytest.fixture(scope="module")
def undisturbed(server: Any) -> list[tuple[str, list[int], int]]:
    async def run() -> list[tuple[str, list[int], int]]:
        async with server.client() as client:
            return list(await asyncio.gather(*Load(client).streams))

    answers = asyncio.run(run())
    assert sum(len(tokens) for _, tokens, _ in answers) > 15_000
    return answers


async def until_whole(server: Any, client: GenerationClient) -> None:
    """Wait until both groups are there, and nothing is held."""
    async with asyncio.timeout(RECOVERY_SECONDS):
        while True:
            groups = await server.books(client)
            free = [g.blocks.free + g.blocks.cached == g.blocks.total for g in groups]
            if free == [True, True]:
                return
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("fault", list(Fault))
async def test_every_stream_tells_what_it_would_have_told(
    server: Any,
    client: GenerationClient,
    undisturbed: list[tuple[str, list[int], int]],
    fault: Fault,
) -> None:
    await until_whole(server, client)
    load = Load(client)
    await load.begun.wait()
    answer = await disturb(client, fault, seconds=1.0)
    live = sum(not stream.done() for stream in load.streams)
    assert live >= NUM_STREAMS // 2, f"too late to prove anything: {answer.done}"
    async with asyncio.timeout(RECOVERY_SECONDS):
        answers = await asyncio.gather(*load.streams)
    for request, told, expected in zip(REQUESTS, answers, undisturbed, strict=True):
        assert told == expected, request
    await until_whole(server, client)


async def test_a_stuck_rank_is_found_and_its_group_serves_again(
    server: Any, client: GenerationClient, request_for: Callable[..., pb.GenerateRequest]
) -> None:
    await until_whole(server, client)
    first, second = sorted(group.group_id for group in (await client.ledger()).groups)
    for group_id in (first, second):
        await disturb(client, Fault.STOP_RANK, group_id)
    asked_now = asyncio.create_task(client.generate(request_for([1, 2, 3], 20)))
    async with asyncio.timeout(RECOVERY_SECONDS):
        assert len((await asked_now).token_ids) == 20
    await until_whole(server, client)
    assert {group.group_id for group in (await client.ledger()).groups} == {first, second}


async def test_what_is_no_fault_or_no_group_is_refused(
    server: Any, client: GenerationClient
) -> None:
    for told, field in (
        ({"fault": "kill-everything"}, "fault"),
        ({"fault": "kill-rank", "group_id": "nowhere"}, "group_id"),
        ({"fault": "kill-rank", "rank": 7}, "rank"),
        ({"fault": "stall-rank", "seconds": 1e9}, "seconds"),
    ):
        with pytest.raises(ServerError) as refused:
            await disturb(client, **told)
        assert (refused.value.code, refused.value.field) == ("INVALID_ARGUMENT", field)
    said = await server.command("chaos", "slow-reader", "--seconds", "0.5")
    assert said.startswith("read 1000 tokens")
