"""Chat completions that fail: whose mistake it was, and what the client is told."""

from collections.abc import Callable
from typing import Any

import openai
import pytest

from blockyard.scheduler.request import FinishReason, RefusalCode, RequestRefused

Spell = Callable[[str], list[int]]
ASKED: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "user <|x|>", "content": "x"}]}, "messages[0].role"),
        ({"temperature": 101}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": 2**40}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"stop": ["x", ""]}, "stop[1]"),
        ({"stop": [1]}, "stop[0]"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"-1": 1}}, "logit_bias[-1]"),
        ({"logit_bias": {"99999": 1}}, "logit_bias[99999]"),
        ({"logit_bias": []}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}},
            "response_format",
        ),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "start: foo"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a" * 70_000}}, "structured_outputs"),
        ({"include_stop_str_in_output": "yes"}, "include_stop_str_in_output"),
        ({"seed": 2**64}, "seed"),
        ({"request_id": "a b"}, "request_id"),
        ({"surprise": 1}, "surprise"),
    ],
)
async def test_mistakes_are_the_callers_and_named(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model="small", messages=ASKED, extra_body=fields)
    assert refused.value.status_code == 400
    body: Any = refused.value.body
    assert (body["param"], body["type"]) == (param, "invalid_request_error")
    assert param in body["message"]
    assert not dispatcher.submitted
    dispatcher.script = [spell("fine"), FinishReason.STOP]
    answer = await client.chat.completions.create(model="small", messages=ASKED)
    assert answer.choices[0].message.content == "fine"


async def test_other_failures_have_openais_classes(
    client: openai.AsyncOpenAI, dispatcher: Any
) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="large", messages=ASKED)
    assert missing.value.code == "model_not_found"
    dispatcher.refusal = RequestRefused(RefusalCode.EXHAUSTED, "too much")
    with pytest.raises(openai.RateLimitError) as busy:
        await client.chat.completions.create(model="small", messages=ASKED, stream=True)
    assert busy.value.response.headers["retry-after"] == "1"
    dispatcher.refusal = RequestRefused(RefusalCode.UNAVAILABLE, "no group")
    with pytest.raises(openai.InternalServerError) as away:
        await client.chat.completions.create(model="small", messages=ASKED)
    assert away.value.status_code == 503


async def test_a_failure_in_the_middle_of_a_stream_is_its_last_event(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.script = [spell("ab"), RequestRefused(RefusalCode.UNAVAILABLE, "the engine is gone")]
    stream = await client.chat.completions.create(model="small", messages=ASKED, stream=True)
    texts = []
    with pytest.raises(openai.APIError, match="the engine is gone"):
        async for chunk in stream:
            texts.append(chunk.choices[0].delta.content)
    assert "".join(filter(None, texts)) == "ab"
