"""Calls of functions and reasoning over HTTP, asked by OpenAI's own client."""

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from blockyard.scheduler.request import FinishReason

Spell = Callable[[str], list[int]]
BAD = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}


async def test_calls_are_told_whole(talk: Any, client: openai.AsyncOpenAI, dispatcher: Any) -> None:
    dispatcher.script = talk.says(f"I look.\n{talk.call}\n{talk.stop}")
    answer = await client.chat.completions.create(
        model="small", messages=talk.asked, tools=talk.tools
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    calls: Any = choice.message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("weather", talk.arguments),
        ("stop", "{}"),
    ]
    assert len({call.id for call in calls}) == 2
    prompt = talk.prompt()
    assert json.loads(prompt.splitlines()[0])["function"]["parameters"] == talk.city


async def test_calls_alone_leave_no_content(
    talk: Any, client: openai.AsyncOpenAI, dispatcher: Any
) -> None:
    dispatcher.script = talk.says(f"\n{talk.call}\n")
    answer = await client.chat.completions.create(
        model="small", messages=talk.asked, tools=talk.tools
    )
    assert answer.choices[0].message.content is None


async def test_calls_are_streamed_as_they_form(
    talk: Any, client: openai.AsyncOpenAI, dispatcher: Any
) -> None:
    dispatcher.script = talk.says(f"I look.\n{talk.call}\n{talk.stop}")
    stream = await client.chat.completions.create(
        model="small", messages=talk.asked, tools=talk.tools, stream=True
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
    assert [tuple(call[1:]) for call in calls.values()] == [
        ("weather", talk.arguments),
        ("stop", "{}"),
    ]
    assert list(calls) == [0, 1]
    assert pieces > len(talk.arguments)
    assert reasons == ["tool_calls"]


async def test_a_call_cut_off_ends_by_length(
    talk: Any, client: openai.AsyncOpenAI, dispatcher: Any
) -> None:
    dispatcher.script = talk.says(talk.call[:50], FinishReason.LENGTH)
    answer = await client.chat.completions.create(
        model="small", messages=talk.asked, tools=talk.tools
    )
    assert answer.choices[0].finish_reason == "length"
    message: Any = answer.choices[0].message
    assert talk.arguments.startswith(message.tool_calls[0].function.arguments)


async def test_one_call_at_a_time_ends_the_answer(
    talk: Any, client: openai.AsyncOpenAI, dispatcher: Any
) -> None:
    dispatcher.script = talk.says(f"{talk.call}\n{talk.stop} and so on")
    answer = await client.chat.completions.create(
        model="small", messages=talk.asked, tools=talk.tools, parallel_tool_calls=False
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert len(choice.message.tool_calls or []) == 1
    assert dispatcher.streams[0].aborts == 1


async def test_without_choice_nothing_is_looked_for(
    talk: Any, client: openai.AsyncOpenAI, dispatcher: Any
) -> None:
    extras: list[dict[str, Any]] = [{"tools": talk.tools, "tool_choice": "none"}, {}]
    for extra in extras:
        dispatcher.script = talk.says(talk.call)
        answer: Any = await client.chat.completions.create(
            model="small", messages=talk.asked, **extra
        )
        assert answer.choices[0].message.content == talk.call
        assert answer.choices[0].finish_reason == "stop"
        assert "weather" not in talk.prompt()


async def test_history_reaches_the_template(
    talk: Any, client: openai.AsyncOpenAI, dispatcher: Any
) -> None:
    dispatcher.script = talk.says("fine")
    function = {"name": "weather", "arguments": talk.arguments}
    history: list[Any] = [
        *talk.asked,
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": ""},
    ]
    answer = await client.chat.completions.create(model="small", messages=history, tools=talk.tools)
    assert answer.choices[0].message.content == "fine"
    prompt = talk.prompt()
    assert "assistant:<tool_call>Paris?hmtool:=call_1" in prompt


async def test_control_tokens_in_tools_and_calls_stay_text(
    talk: Any, client: openai.AsyncOpenAI, dispatcher: Any
) -> None:
    dispatcher.script = talk.says("fine")
    tools: Any = [{"type": "function", "function": {"name": "f", "description": "<|im_end|>"}}]
    function = {"name": "f", "arguments": '{"city": "<|im_start|>"}'}
    history: list[Any] = [
        *talk.asked,
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
    ({"tools": _tool(name="f"), "tool_choice": "some"}, "tool_choice"),
    ({"tools": _tool(name="f"), "tool_choice": {"type": "function"}}, "tool_choice.name"),
    ({"tools": _tool(name="f"), "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
    (
        {
            "tools": _tool(name="f"),
            "tool_choice": "required",
            "response_format": {"type": "json_object"},
        },
        "response_format",
    ),
    ({"tools": _tool(name="f"), "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
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


async def test_mistakes_name_their_field(talk: Any, client: openai.AsyncOpenAI) -> None:
    for asked, field in MISTAKES:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                model="small", messages=talk.asked, extra_body=asked
            )
        assert caught.value.param == field


async def test_mistakes_in_the_history_name_their_field(
    talk: Any, client: openai.AsyncOpenAI
) -> None:
    for message, field in HISTORY_MISTAKES:
        history: list[Any] = [message, *talk.asked]
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="small", messages=history)
        assert caught.value.param == field
