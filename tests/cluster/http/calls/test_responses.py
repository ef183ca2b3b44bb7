"""Responses, asked by OpenAI's own client."""

from collections.abc import Callable
from typing import Any

import openai
import pytest

from blockyard.scheduler.request import FinishReason

Spell = Callable[[str], list[int]]
TEMPLATE = """
{%- for message in messages %}<{{ message.role }}>{{ message.content }}
{%- for call in message.tool_calls or [] %}!{{ call.function.name }}{% endfor %}
{%- if message.reasoning_content %}?{{ message.reasoning_content }}{% endif %}
{%- endfor %}
{%- if tools %}#{{ tools | length }}{% endif %}
{#- <tool_call> </think> #}"""
TOOLS: list[Any] = [{"type": "function", "name": "weather", "parameters": {}, "strict": False}]
SAID = '<think>hm</think>I look.\n<tool_call>{"name": "weather", "arguments": {"a": 1}}</tool_call>'


@pytest.fixture
def template() -> str:
    return TEMPLATE


async def test_a_text(talk: Any, client: openai.AsyncOpenAI, dispatcher: Any) -> None:
    dispatcher.script = talk.says("good day")
    response = await client.responses.create(
        model="small",
        input="hello",
        instructions="be kind",
        max_output_tokens=50,
        temperature=0.5,
        metadata={"a": "b"},
    )
    assert response.output_text == "good day"
    assert (response.status, response.error, response.incomplete_details) == (
        "completed",
        None,
        None,
    )
    assert response.id.startswith("resp_")
    assert (response.instructions, response.max_output_tokens) == ("be kind", 50)
    assert (response.temperature, response.metadata) == (0.5, {"a": "b"})
    assert response.usage is not None
    spec = dispatcher.submitted[0][1]
    assert response.usage.input_tokens == len(spec.prompt_token_ids)
    assert response.usage.output_tokens == 8
    assert response.usage.input_tokens_details.cached_tokens == 3
    assert (spec.sampling.max_tokens, spec.sampling.temperature) == (50, 0.5)
    assert talk.prompt() == "<system>be kind<user>hello"


async def test_items_reach_the_template(
    talk: Any, client: openai.AsyncOpenAI, dispatcher: Any
) -> None:
    dispatcher.script = talk.says(SAID)
    first = await client.responses.create(model="small", input="hello", tools=TOOLS)
    parts: list[Any] = list(first.output)
    (thought, message, call) = parts
    items: list[Any] = [
        {"role": "developer", "content": "brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        *(item.model_dump(exclude_none=True) for item in (thought, message, call)),
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
    ]
    await client.responses.create(model="small", input=items, tools=TOOLS)
    prompt = talk.prompt()
    assert prompt == "<system>brief<user>hello<assistant>I look.!weather?hm<tool>rain#1"


async def test_reasoning_text_and_calls_are_items(
    talk: Any, client: openai.AsyncOpenAI, dispatcher: Any
) -> None:
    dispatcher.script = talk.says(SAID)
    response: Any = await client.responses.create(model="small", input="hello", tools=TOOLS)
    thought, message, call = response.output
    assert (thought.type, thought.content[0].text) == ("reasoning", "hm")
    assert (message.type, message.content[0].text) == ("message", "I look.")
    assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"a": 1}')
    assert response.output_text == "I look."
    assert response.usage.output_tokens_details.reasoning_tokens == 2


async def test_a_stream_adds_up_to_the_whole(
    talk: Any, client: openai.AsyncOpenAI, dispatcher: Any
) -> None:
    dispatcher.script = talk.says(SAID)
    stream = await client.responses.create(model="small", input="hello", tools=TOOLS, stream=True)
    events: list[Any] = [event async for event in stream]
    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == 3
    assert kinds.count("response.output_item.done") == 3

    def joined(kind: str) -> str:
        return "".join(event.delta for event in events if event.type == kind)

    assert joined("response.reasoning_text.delta") == "hm"
    assert joined("response.output_text.delta") == "I look."
    assert joined("response.function_call_arguments.delta") == '{"a": 1}'
    assert kinds.count("response.function_call_arguments.delta") > 1
    whole = events[-1].response
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.model_dump() for item in whole.output] == [item.model_dump() for item in done]
    assert whole.output_text == "I look."
    dispatcher.script = talk.says(SAID)
    plain = await client.responses.create(model="small", input="hello", tools=TOOLS)
    assert [item.type for item in plain.output] == [item.type for item in whole.output]


async def test_the_client_s_own_reader_of_streams_follows(
    talk: Any, client: openai.AsyncOpenAI, dispatcher: Any
) -> None:
    dispatcher.script = talk.says("good day")
    async with client.responses.stream(model="small", input="hello") as stream:
        texts = [
            event.delta async for event in stream if event.type == "response.output_text.delta"
        ]
        final = await stream.get_final_response()
    assert "".join(texts) == final.output_text == "good day"


async def test_an_answer_cut_off_is_incomplete(
    talk: Any, client: openai.AsyncOpenAI, dispatcher: Any
) -> None:
    dispatcher.script = talk.says("good", FinishReason.LENGTH)
    response = await client.responses.create(model="small", input="hello", max_output_tokens=4)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    output: Any = response.output[0]
    assert output.status == "incomplete"


async def test_a_form_is_kept_to(talk: Any, client: openai.AsyncOpenAI, dispatcher: Any) -> None:
    dispatcher.script = talk.says("{}")
    schema: Any = {"type": "object", "properties": {"unusual": {"type": "integer"}}}
    form: Any = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
    response: Any = await client.responses.create(model="small", input="hello", text=form)
    assert "unusual" in dispatcher.submitted[0][1].sampling.grammar
    assert response.text.format.name == "n"


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content[0].type",
    ),
    ({"input": [{"role": "user", "content": "x", "extra": 1}]}, "input[0].extra"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"store": True}, "store"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"include": ["reasoning.encrypted_content"]}, "include"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"max_output_tokens": -1}, "max_output_tokens"),
    ({"n": 2}, "n"),
    ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
    ({"nonsense": 1}, "nonsense"),
]


async def test_mistakes_name_their_field(client: openai.AsyncOpenAI) -> None:
    for asked, field in MISTAKES:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="small", input="hello", extra_body=asked)
        assert caught.value.param == field


async def test_a_failure_in_the_middle_ends_the_stream_with_an_error(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.script = [spell("good"), RuntimeError("secret")]
    stream = await client.responses.create(model="small", input="hello", stream=True)
    with pytest.raises(openai.APIError, match="incident"):
        async for _ in stream:
            pass
