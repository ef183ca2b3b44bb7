"""An HTTP server in front of a scripted dispatcher, and OpenAI's own client of it."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest

from blockyard.cluster.dispatch import Dispatcher
from blockyard.cluster.http_front import HttpFront
from blockyard.cluster.tokenizer import ModelTokenizer


@pytest.fixture
async def http_url(
    dispatcher: Dispatcher, tokenizers: dict[str, ModelTokenizer]
) -> AsyncIterator[str]:
    front = HttpFront(dispatcher, tokenizers)
    port = await front.start("127.0.0.1", 0)
    yield f"http://127.0.0.1:{port}"
    await front.stop(None)


@pytest.fixture
async def plain(http_url: str) -> AsyncIterator[Any]:
    """A client without opinions."""
    async with httpx2.AsyncClient(base_url=http_url, timeout=60) as client:
        yield client


@pytest.fixture
async def client(http_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{http_url}/v1", api_key="none", max_retries=0, timeout=60
    ) as client:
        yield client
