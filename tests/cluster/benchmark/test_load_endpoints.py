"""Servers under load, as they are asked and understood."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from blockyard.cluster.benchmark.grpc_endpoint import GrpcEndpoint
from blockyard.cluster.benchmark.load_endpoint import Answer, EndpointError
from blockyard.cluster.benchmark.load_requests import LoadRequest
from blockyard.cluster.benchmark.openai_endpoint import OpenAiEndpoint
from blockyard.cluster.client import GenerationClient
from blockyard.cluster.http_front import HttpFront
from blockyard.scheduler.request import FinishReason


@pytest.fixture
async def http_url(dispatcher: Any, tokenizers: Any) -> AsyncIterator[str]:
    front = HttpFront(dispatcher, tokenizers)
    yield f"http://127.0.0.1:{await front.start('127.0.0.1', 0)}"
    await front.stop(None)


@pytest.mark.parametrize("chat", [False, True])
async def test_an_openai_server_is_asked_and_understood(
    dispatcher: Any, spell: Any, http_url: str, chat: bool
) -> None:
    dispatcher.script = [spell("he"), spell("llo"), FinishReason.STOP]
    endpoint = OpenAiEndpoint(f"{http_url}/v1", chat)
    try:
        assert (await endpoint.model("")).context_tokens == 128
        pieces: list[int] = []
        answer = await endpoint.ask(LoadRequest((5, 6, 7), 20), pieces.append)
        assert answer == Answer("hello", 5, True)
        assert len(pieces) == 2
        _, spec = dispatcher.submitted[0]
        assert spec.sampling.max_tokens == 20 and spec.sampling.greedy
        assert not spec.sampling.stop_token_ids, "the length is exact"
        if not chat:
            assert spec.prompt_token_ids == (5, 6, 7)
        await endpoint.ask(LoadRequest("say", 20, schema='{"type": "boolean"}'), pieces.append)
        assert dispatcher.submitted[1][1].sampling.grammar
        with pytest.raises(EndpointError, match="known are small"):
            await endpoint.model("large")
        await endpoint.model("small")
        with pytest.raises(EndpointError) as caught:
            await endpoint.ask(LoadRequest((5,), 2000), pieces.append)
        assert caught.value.kind == "HTTP 400"
    finally:
        await endpoint.close()


async def test_a_grpc_server_is_asked_and_understood(
    dispatcher: Any, spell: Any, address: str
) -> None:
    dispatcher.script = [spell("he"), spell("llo"), FinishReason.LENGTH]
    endpoint = GrpcEndpoint(GenerationClient(address), chat=True)
    try:
        served = await endpoint.model("")
        assert (served.name, served.context_tokens) == ("small", 128)
        pieces: list[int] = []
        assert await endpoint.ask(LoadRequest((5, 6), 5), pieces.append) == Answer(
            "hello", 5, False
        )
        assert pieces == [2, 3]
        await endpoint.ask(LoadRequest("say", 20, schema='{"type": "boolean"}'), pieces.append)
        assert dispatcher.submitted[1][1].sampling.grammar
        with pytest.raises(EndpointError) as caught:
            await endpoint.ask(LoadRequest((5,), 2000), pieces.append)
        assert caught.value.kind == "INVALID_ARGUMENT"
    finally:
        await endpoint.close()
