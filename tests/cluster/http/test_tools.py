"""Calls of functions and reasoning over HTTP, asked by OpenAI's own client."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer

from blockyard.cluster.request.chat_template import ChatTemplate
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.scheduler.request import FinishReason
from blockyard.workers.description import ModelDescription

Spell = Callable[[str], list[int]]
ASKED: list[Any] = [{"role": "user", "content": "hello"}]
CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}},
    "required": ["city"],
    "$defs": {"name": {"type": "string", "maxLength": 8}},
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "W", "parameters": CITY}},
    {"type": "function", "function": {"name": "stop"}},
]
TEMPLATE = """
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}
{%- for message in messages %}{{ message.role }}:{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function.arguments.city }}{% endfor %}
{%- if message.role == 'tool' %}={{ message.tool_call_id }}{% endif %}
{%- if message.reasoning_content %}?{{ message.reasoning_content }}{% endif %}
{% endfor %}
{%- if add_generation_prompt %}assistant:{% if enable_thinking %}<think>\n{% endif %}{% endif %}
{#- </think> #}"""
BAD = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
PARIS = '{"city": "Paris"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>'
STOP = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'


@pytest.fixture
def description(description: ModelDescription) -> ModelDescription:
    return replace(description, context_tokens=2048)


@pytest.fixture
def tokenizers(inner_tokenizer: Tokenizer) -> dict[str, ModelTokenizer]:
    inner = Tokenizer.from_str(inner_tokenizer.to_str())
    return {"small": ModelTokenizer(inner, ChatTemplate(TEMPLATE, {}))}


def says(spell: Spell, text: str, end: FinishReason = FinishReason.STOP) -> list[Any]:
    return [*([token] for token in spell(text)), end]


def prompt_of(dispatcher: Any, tokenizers: Any) -> str:
    return str(tokenizers["small"].decode_all(dispatcher.submitted[-1][1].prompt_token_ids))


async def test_calls_are_told_whole(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell, tokenizers: Any
) -> None:
    dispatcher.script = says(spell, f"I look.\n{CALL}\n{STOP}")
    answer = await client.chat.completions.create(model="small", messages=ASKED, tools=TOOLS)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    calls: Any = choice.message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("weather", PARIS),
        ("stop", "{}"),
    ]
    assert len({call.id for call in calls}) == 2
    prompt = prompt_of(dispatcher, tokenizers)
    assert json.loads(prompt.splitlines()[0])["function"]["parameters"] == CITY


async def test_calls_alone_leave_no_content(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.script = says(spell, f"\n{CALL}\n")
    answer = await client.chat.completions.create(model="small", messages=ASKED, tools=TOOLS)
    assert answer.choices[0].message.content is None


async def test_calls_are_streamed_as_they_form(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.script = says(spell, f"I look.\n{CALL}\n{STOP}")
    stream = await client.chat.completions.create(
        model="small", messages=ASKED, tools=TOOLS, stream=True
    )
    content, calls, reasons, pieces = "", {}, [], 0
    async for chunk in stream:
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        reasons += [choice.finish_reason] if choice.finish_reason else []
        for call in choice.delta.tool_calls or []:
            assert call.function is not None
            if call.id:
                calls[call.index] = [call.id, call.function.name, ""]
                assert call.type == "function"
            calls[call.index][2] = f"{calls[call.index][2]}{call.function.arguments or ''}"
            pieces += 1
    assert content == "I look."
    assert [tuple(call[1:]) for call in calls.values()] == [("weather", PARIS), ("stop", "{}")]
    assert list(calls) == [0, 1]
    assert pieces > len(PARIS)
    assert reasons == ["tool_calls"]


async def test_a_call_cut_off_ends_by_length(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.script = says(spell, CALL[:50], FinishReason.LENGTH)
    answer = await client.chat.completions.create(model="small", messages=ASKED, tools=TOOLS)
    assert answer.choices[0].finish_reason == "length"
    message: Any = answer.choices[0].message
    assert PARIS.startswith(message.tool_calls[0].function.arguments)


async def test_one_call_at_a_time_ends_the_answer(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.script = says(spell, f"{CALL}\n{STOP} and so on")
    answer = await client.chat.completions.create(
        model="small", messages=ASKED, tools=TOOLS, parallel_tool_calls=False
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert len(choice.message.tool_calls or []) == 1
    assert dispatcher.streams[0].aborts == 1


async def test_without_choice_nothing_is_looked_for(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell, tokenizers: Any
) -> None:
    extras: list[dict[str, Any]] = [{"tools": TOOLS, "tool_choice": "none"}, {}]
    for extra in extras:
        dispatcher.script = says(spell, CALL)
        answer: Any = await client.chat.completions.create(model="small", messages=ASKED, **extra)
        assert answer.choices[0].message.content == CALL
        assert answer.choices[0].finish_reason == "stop"
        assert "weather" not in prompt_of(dispatcher, tokenizers)


async def test_history_reaches_the_template(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell, tokenizers: Any
) -> None:
    dispatcher.script = says(spell, "fine")
    function = {"name": "weather", "arguments": PARIS}
    history: list[Any] = [
        *ASKED,
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": ""},
    ]
    answer = await client.chat.completions.create(model="small", messages=history, tools=TOOLS)
    assert answer.choices[0].message.content == "fine"
    prompt = prompt_of(dispatcher, tokenizers)
    assert "assistant:<tool_call>Paris?hmtool:=call_1" in prompt


async def test_control_tokens_in_tools_and_calls_stay_text(
    client: openai.AsyncOpenAI, dispatcher: Any, spell: Spell
) -> None:
    dispatcher.script = says(spell, "fine")
    tools: Any = [{"type": "function", "function": {"name": "f", "description": "<|im_end|>"}}]
    function = {"name": "f", "arguments": '{"city": "<|im_start|>"}'}
    history: list[Any] = [
        *ASKED,
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "<|endoftext|>"},
    ]
    await client.chat.completions.create(model="small", messages=history, tools=tools)
    assert {0, 1, 2}.isdisjoint(dispatcher.submitted[0][1].prompt_token_ids)


def _tool(**function: Any) -> list[Any]:
    return [{"type": "function", "function": function}]


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "custom"}]}, "tools[0].type"),
    ({"tools": _tool(name="a b")}, "tools[0].name"),
    ({"tools": _tool(name="f", parameters=[])}, "tools[0].parameters"),
    ({"tools": _tool(name="f", parameters={"type": "array"})}, "tools[0].parameters"),
    ({"tools": _tool(name="f") * 2}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.name"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
    (
        {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
        "response_format",
    ),
    ({"tools": TOOLS, "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
    (
        {"tools": _tool(name="f", parameters=BAD), "tool_choice": "required"},
        "tools",
    ),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"no_such": 1}}, "chat_template_kwargs"),
    ({"reasoning_effort": "low"}, "chat_template_kwargs"),
]
HISTORY_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"role": "user", "content": "x", "tool_calls": []}, "messages[0].tool_calls"),
    (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]},
        "messages[0].tool_calls[0].arguments",
    ),
    ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0].function"),
]


async def test_mistakes_name_their_field(client: openai.AsyncOpenAI) -> None:
    for asked, field in MISTAKES:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="small", messages=ASKED, extra_body=asked)
        assert caught.value.param == field


async def test_mistakes_in_the_history_name_their_field(client: openai.AsyncOpenAI) -> None:
    for message, field in HISTORY_MISTAKES:
        history: list[Any] = [message, *ASKED]
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="small", messages=history)
        assert caught.value.param == field
