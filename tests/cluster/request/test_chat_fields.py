"""What a conversation may hold besides its texts: calls, names, variables of the template."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from blockyard.cluster.request.api_error import ApiError
from blockyard.cluster.request.chat_fields import MAX_NESTING, run_encoder
from blockyard.cluster.request.validation import prepare_request
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.workers.description import ModelDescription

Prepare = Callable[[pb.GenerateRequest], Any]


@pytest.fixture
def prepare(description: ModelDescription, tokenizer: ModelTokenizer) -> Prepare:
    roomy = replace(description, context_tokens=4096)
    return lambda request: asyncio.run(prepare_request(request, roomy, tokenizer))


def conversation(arguments: str = "{}", **result: str) -> pb.GenerateRequest:
    """A call, and what came of it."""
    chat = pb.ChatMessages()
    chat.messages.add(role="user", content="a")
    chat.messages.add(role="assistant").tool_calls.add(id="1", name="f", arguments=arguments)
    chat.messages.add(**{"role": "tool", "content": "b", "tool_call_id": "1", **result})
    return pb.GenerateRequest(chat=chat)


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def test_half_a_character_in_a_call_is_read_as_a_mark(
    prepare: Prepare, tokenizer: ModelTokenizer
) -> None:
    prepared = prepare(conversation('{"a": "\\ud800 \\u00e9"}'))
    assert "? \u00e9" in tokenizer.decode_all(prepared.spec.prompt_token_ids)


def test_calls_are_read_to_a_depth_and_refused_below_it(prepare: Prepare) -> None:
    prepare(conversation(nested(MAX_NESTING)))
    with pytest.raises(ApiError, match="nested more than 64 deep") as refused:
        prepare(conversation(nested(MAX_NESTING + 1)))
    assert refused.value.field == "chat.messages[1].tool_calls[0].arguments"
    with pytest.raises(ApiError, match="nested more than 64 deep"):
        prepare(conversation('{"a":' + "[" * 600 + "]" * 600 + "}"))


@pytest.mark.parametrize("field", ["content", "tool_call_id", "name"])
def test_every_text_that_is_laid_out_counts(prepare: Prepare, field: str) -> None:
    with pytest.raises(ApiError, match="bytes") as refused:
        prepare(conversation(**{field: "x" * 4_000_000}))
    assert refused.value.field == "chat.messages"


def test_variables_of_the_template_count_too(prepare: Prepare) -> None:
    request = conversation()
    request.chat.template_variables = '{"a": "' + "x" * 4_000_000 + '"}'
    with pytest.raises(ApiError, match="bytes") as refused:
        prepare(request)
    assert refused.value.field == "chat.messages"


def test_long_texts_are_not_laid_out_on_the_event_loop() -> None:
    async def where(num_bytes: int) -> bool:
        loop = asyncio.get_running_loop()
        on_loop: list[bool] = []

        def encode() -> tuple[int, ...]:
            try:
                on_loop.append(asyncio.get_running_loop() is loop)
            except RuntimeError:
                on_loop.append(False)
            return ()

        await run_encoder(num_bytes, encode)
        return on_loop[0]

    assert asyncio.run(where(100))
    assert not asyncio.run(where(1_000_000))
