"""A tiny real model in a whole server of this process, asked in four ways.

The rig of the field cases: float32, 256 positions, a vocabulary of bytes and three control tokens.
Every case ends with a drain check: nothing runs, and every block is free or kept for its content.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from blockyard.cluster.client import GenerationClient, ServerError
from blockyard.cluster.grpc_front import GrpcFront
from blockyard.cluster.http_front import HttpFront
from blockyard.cluster.local_dispatcher import LocalDispatcher
from blockyard.cluster.request.whole_answer import WholeAnswer
from blockyard.cluster.tokenizer import ModelTokenizer, load_tokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.config import SchedulerConfig, Speculation
from blockyard.workers.config import Executor, WorkerConfig
from blockyard.workers.description import describe_model
from blockyard.workers.witness_files import write_witness_files
from blockyard.workers.worker import ModelWorker

CONTEXT = 256
VOCABULARY = 259
FINISH = {1: "stop", 2: "length", 3: "abort"}


@dataclass(frozen=True)
class Told:
    """An answer as its transport told it. HTTP tells tokens by what they spell."""

    texts: list[str]
    reasons: list[str]
    spelled: list[list[bytes]]
    logprobs: list[list[float]]
    tops: list[list[list[float]]]
    prompt: list[int]
    prompt_logprobs: list[float | None]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Refused(Exception):
    """The server said no: `code` in gRPC's words, and the field without what holds it."""

    def __init__(self, code: str, field: str, message: str) -> None:
        super().__init__(code, field, message)
        self.code = code
        self.field = field
        self.message = message


Ask = Callable[..., Awaitable[Told]]


class Rig:
    """A running server."""

    def __init__(self, dispatcher: LocalDispatcher, tokenizer: ModelTokenizer) -> None:
        tokenizers = {"tiny": tokenizer}
        self.dispatcher = dispatcher
        self.tokenizer = tokenizer
        self.grpc = GrpcFront(dispatcher, tokenizers)
        self.http = HttpFront(dispatcher, tokenizers)

    async def start(self) -> None:
        self.address = f"127.0.0.1:{await self.grpc.start('127.0.0.1:0')}"
        self.url = f"http://127.0.0.1:{await self.http.start('127.0.0.1', 0)}"
        self.client = GenerationClient(self.address, timeout_seconds=60)
        self.web = httpx2.AsyncClient(base_url=self.url, timeout=60)

    async def close(self) -> None:
        await self.client.close()
        await self.web.aclose()
        await asyncio.gather(self.grpc.stop(None), self.http.stop(None))
        await self.dispatcher.close()

    async def drained(self) -> None:
        async with asyncio.timeout(60):
            while True:
                self.dispatcher.engine.check()
                ledger = self.dispatcher.engine.ledger()
                live = ledger.requests.running + ledger.requests.waiting + ledger.requests.parked
                if not live and ledger.blocks.free + ledger.blocks.cached == ledger.blocks.total:
                    assert ledger.stalled_steps == 0
                    return
                await asyncio.sleep(0.005)

    async def ask(self, way: str, prompt: str | Sequence[int], **fields: Any) -> Told:
        """Ask in one of `WAYS`; fields have their names in gRPC."""
        if way.startswith("grpc"):
            return await self._ask_grpc(way, prompt, fields)
        return await self._ask_http(way, prompt, fields)

    async def _ask_grpc(
        self, way: str, prompt: str | Sequence[int], fields: dict[str, Any]
    ) -> Told:
        request = pb.GenerateRequest()
        try:
            request.sampling.CopyFrom(pb.SamplingParameters(**fields))
        except (ValueError, TypeError) as error:  # no client can send it
            raise Refused("INVALID_ARGUMENT", next(iter(fields)), str(error)) from None
        if isinstance(prompt, str):
            request.prompt = prompt
        else:
            request.tokens.SetInParent()
            request.tokens.ids.extend(prompt)
        try:
            if way == "grpc-unary":
                response = await self.client.generate(request)
            else:
                whole = WholeAnswer()
                async for chunk in self.client.stream(request):
                    whole.add(chunk)
                response = whole.response()
        except ServerError as error:
            raise Refused(error.code, error.field.removeprefix("sampling."), str(error)) from None
        return Told(
            [choice.text for choice in response.choices],
            [FINISH[choice.finish_reason] for choice in response.choices],
            [[self.tokenizer.spell(t) for t in choice.token_ids] for choice in response.choices],
            [[entry.logprob for entry in choice.logprobs] for choice in response.choices],
            [
                [[top.logprob for top in entry.top] for entry in choice.logprobs]
                for choice in response.choices
            ],
            list(response.prompt.token_ids),
            [
                entry.logprob if entry.HasField("logprob") else None
                for entry in response.prompt.logprobs
            ],
            response.usage.prompt_tokens,
            response.usage.cached_tokens,
            response.usage.completion_tokens,
        )

    async def _ask_http(
        self, way: str, prompt: str | Sequence[int], fields: dict[str, Any]
    ) -> Told:
        body = {"prompt": prompt if isinstance(prompt, str) else list(prompt), **fields}
        body.setdefault("max_tokens", CONTEXT - len(prompt))
        body["include_stop_str_in_output"] = body.pop("include_stop", None)
        stream = way == "http-stream"
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        answer = await self.web.post("/v1/completions", json=body)
        if answer.status_code != 200:
            error = answer.json()["error"]
            code = {400: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED"}[answer.status_code]
            raise Refused(code, error["param"] or "", error["message"])
        if not stream:
            return _told_by_http([answer.json()])
        events = answer.text.removesuffix("\n\n").split("\n\n")
        assert events.pop() == "data: [DONE]"
        return _told_by_http([json.loads(event.removeprefix("data: ")) for event in events])


def _told_by_http(pieces: list[dict[str, Any]]) -> Told:
    choices: dict[int, dict[str, Any]] = {}
    prompt: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    for piece in pieces:
        usage = piece.get("usage") or usage
        for part in piece["choices"]:
            choice = choices.setdefault(
                part["index"], {"text": "", "reason": None, "tokens": [], "lps": [], "tops": []}
            )
            choice["text"] += part["text"]
            assert choice["reason"] is None, "nothing follows an end"
            choice["reason"] = part["finish_reason"]
            if part["logprobs"]:
                choice["tokens"] += part["logprobs"]["tokens"]
                choice["lps"] += part["logprobs"]["token_logprobs"]
                choice["tops"] += part["logprobs"]["top_logprobs"]
            prompt |= {k: part[k] for k in ("prompt_token_ids", "prompt_logprobs") if k in part}
    ordered = [choice for _, choice in sorted(choices.items())]
    told = prompt.get("prompt_token_ids", [])
    scores = prompt.get("prompt_logprobs", [])
    return Told(
        [choice["text"] for choice in ordered],
        [choice["reason"] for choice in ordered],
        [[_bytes(token) for token in choice["tokens"]] for choice in ordered],
        [choice["lps"] for choice in ordered],
        [[sorted((top or {}).values()) for top in choice["tops"]] for choice in ordered],
        told,
        [None if s is None else s[str(t)]["logprob"] for t, s in zip(told, scores, strict=False)],
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["completion_tokens"],
    )


def _bytes(token: str) -> bytes:
    if token.startswith("bytes:"):
        return bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
    return token.encode()


@pytest.fixture(scope="session")
def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        tie_word_embeddings=False,
        eos_token_id=258,
        pad_token_id=258,
    )
    model = LlamaForCausalLM(config)
    model.train(False)
    return model


@pytest.fixture(scope="session")
def tiny_dir(tiny_model: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_witness_files(folder)
    tiny_model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_dir: Path) -> ModelTokenizer:
    return load_tokenizer(tiny_dir)


@pytest.fixture
async def make_rig(tiny_dir: Path) -> AsyncIterator[Callable[..., Awaitable[Rig]]]:
    """Starts servers; `executor` takes the place of the model, which guesses for itself."""
    rigs: list[Rig] = []

    async def make(
        blocks: int = 128,
        executor: Executor | None = None,
        step_tokens: int = 64,
        running: int = 16,
        folder: Path = tiny_dir,
        speculate: Speculation = Speculation.OFF,
    ) -> Rig:
        model = describe_model(folder, "tiny")
        context = model.context_tokens
        worker = executor or ModelWorker(
            WorkerConfig(
                str(folder),
                context,
                device="cpu",
                num_blocks=blocks,
                num_host_blocks=0,
                threads=1,
                max_step_tokens=step_tokens,
                max_running=running,
                draft_dir=str(folder) if speculate is Speculation.DRAFT else None,
            )
        )
        limits = SchedulerConfig(
            context, max_running=running, max_step_tokens=step_tokens, speculate=speculate
        )
        rig = Rig(await LocalDispatcher.start(model, worker, limits), load_tokenizer(folder))
        await rig.start()
        rigs.append(rig)
        return rig

    yield make
    for rig in rigs:
        await rig.drained()
        await rig.close()


@pytest.fixture
async def rig(make_rig: Callable[..., Awaitable[Rig]]) -> Rig:
    return await make_rig()


@pytest.fixture(scope="session")
def refused() -> type[Refused]:
    return Refused


@pytest.fixture(params=["grpc-stream", "grpc-unary", "http-stream", "http-whole"])
def way(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found
