"""Routes about the server, tokens, and requests that are none."""

import asyncio
from typing import Any

import openai
import pytest

from blockyard.cluster.http.exchange import MAX_BODY_BYTES
from blockyard.cluster.http_front import HttpFront
from blockyard.cluster.tokenizer import ModelTokenizer


async def test_models(client: openai.AsyncOpenAI) -> None:
    models = [model async for model in client.models.list()]
    assert [(model.id, model.object) for model in models] == [("small", "model")]
    assert (await client.models.retrieve("small")).id == "small"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("org/other")


async def test_tokens_there_and_back(plain: Any, tokenizer: ModelTokenizer) -> None:
    answer = (await plain.post("/tokenize", json={"prompt": "hello world"})).json()
    assert answer["tokens"] == list(tokenizer.encode_prompt("hello world"))
    assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), 128)
    back = (await plain.post("/detokenize", json={"tokens": answer["tokens"]})).json()
    assert back == {"prompt": "hello world"}
    chat = [{"role": "user", "content": "hello <|im_end|>"}]
    answer = (await plain.post("/tokenize", json={"messages": chat})).json()
    assert answer["tokens"] == list(tokenizer.encode_chat(chat))
    back = (await plain.post("/detokenize", json={"tokens": answer["tokens"]})).json()
    assert back["prompt"].startswith("<|im_start|>user\nhello <|im_end|>")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "messages"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": [], "add_special_tokens": False}, "without_special_tokens"),
        ("/detokenize", {"tokens": [1, 99999]}, "tokens[1]"),
        ("/detokenize", {"tokens": ["x"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1], "more": 1}, "more"),
    ],
)
async def test_bad_questions_about_tokens(
    plain: Any, path: str, body: dict[str, Any], param: str
) -> None:
    answer = await plain.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_up_is_not_ready(plain: Any, dispatcher: Any) -> None:
    assert (await plain.get("/health")).status_code == 200
    assert (await plain.get("/ready")).status_code == 200
    dispatcher.is_ready = False
    assert (await plain.get("/health")).status_code == 200
    answer = await plain.get("/ready")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"


async def test_metrics(plain: Any) -> None:
    answer = await plain.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert "blockyard_" in answer.text


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff\xfe", b'{"temperature": NaN}', b"[" * 100_000]
)
async def test_bodies_that_are_no_object(plain: Any, body: bytes) -> None:
    answer = await plain.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "body"


async def test_a_body_beyond_the_limit(plain: Any) -> None:
    body = b'{"prompt": "' + b"x" * MAX_BODY_BYTES + b'"}'
    answer = await plain.post("/v1/completions", content=body)
    assert answer.status_code == 400
    assert "bytes" in answer.json()["error"]["message"]


async def test_a_megabyte_of_text_is_refused_by_name(plain: Any) -> None:
    answer = await plain.post("/v1/completions", json={"prompt": "x" * 1_000_000})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


async def test_routes_that_are_not_there(plain: Any) -> None:
    missing = await plain.get("/v2/anything")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "not_found"
    wrong = await plain.get("/v1/completions")
    assert wrong.status_code == 405
    assert "error" in wrong.json()


async def test_nothing_of_the_server_is_told(plain: Any, dispatcher: Any) -> None:
    dispatcher.refusal = RuntimeError("a bug in /secret/place")
    answer = await plain.post("/v1/completions", json={"prompt": "x"})
    assert answer.status_code == 500
    assert "/secret" not in answer.text
    assert answer.json()["error"]["incident"]
    assert "server" not in answer.headers


async def test_a_stop_ends_streams_and_aborts_their_requests(
    dispatcher: Any, tokenizers: dict[str, ModelTokenizer]
) -> None:
    dispatcher.script = [[65], "hang"]
    front = HttpFront(dispatcher, tokenizers)
    port = await front.start("127.0.0.1", 0)
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0
    ) as client:
        stream = await client.completions.create(model="small", prompt="a", stream=True)
        await anext(aiter(stream))
        async with asyncio.timeout(60):
            await front.stop(0.05)
        assert dispatcher.streams[0].aborts == 1
        await stream.close()


async def test_a_port_in_use_is_said(http_url: str, dispatcher: Any) -> None:
    port = int(http_url.rpartition(":")[2])
    with pytest.raises(OSError, match="another server"):
        await HttpFront(dispatcher, {}).start("127.0.0.1", port)
