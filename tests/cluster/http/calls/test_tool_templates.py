"""Reasoning, and calls as models with other templates and vocabularies write them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import openai
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from blockyard.cluster.client_request import build_request
from blockyard.cluster.request.chat_template import ChatTemplate
from blockyard.cluster.request.generation import GenerationService
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import FinishReason

Spell = Callable[[str], list[int]]
PARIS = '{"city": "Paris"}'


class TestReasoning:
    async def test_it_is_told_apart(
        self, talk: Any, client: openai.AsyncOpenAI, dispatcher: Any
    ) -> None:
        dispatcher.script = talk.says(f"<think>\nhm\n</think>\n\nyes {talk.call}")
        answer = await client.chat.completions.create(
            model="small", messages=talk.asked, tools=talk.tools
        )
        message: Any = answer.choices[0].message
        assert (message.reasoning_content, message.content) == ("hm", "yes")
        assert message.tool_calls[0].function.name == "weather"

    async def test_it_is_streamed(
        self, talk: Any, client: openai.AsyncOpenAI, dispatcher: Any
    ) -> None:
        dispatcher.script = talk.says("hm\n</think>\n\nyes")
        stream = await client.chat.completions.create(
            model="small",
            messages=talk.asked,
            stream=True,
            extra_body={"chat_template_kwargs": {"enable_thinking": True}},
        )
        deltas: list[Any] = [chunk.choices[0].delta async for chunk in stream]
        told = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
        assert "".join(told) == "hm"
        assert len([piece for piece in told if piece]) == 2
        assert "".join(delta.content or "" for delta in deltas) == "yes"
        assert talk.prompt().endswith("assistant:<think>\n")

    async def test_it_is_left_out_when_nobody_wants_it(
        self, talk: Any, client: openai.AsyncOpenAI, dispatcher: Any
    ) -> None:
        dispatcher.script = talk.says("<think>hm</think>yes")
        answer = await client.chat.completions.create(
            model="small", messages=talk.asked, extra_body={"include_reasoning": False}
        )
        message: Any = answer.choices[0].message
        assert message.content == "yes"
        assert getattr(message, "reasoning_content", None) is None


class TestOtherTemplates:
    @pytest.fixture
    def served(self, tokenizers: dict[str, ModelTokenizer], inner_tokenizer: Tokenizer) -> Any:
        def serve(template: str, *control: str) -> None:
            inner = Tokenizer.from_str(inner_tokenizer.to_str())
            inner.add_special_tokens(list(control))
            tokenizers["small"] = ModelTokenizer(inner, ChatTemplate(template, {}))

        return serve

    def tokens(self, spell: Spell, tokenizer: ModelTokenizer, *parts: str) -> list[list[int]]:
        control = [tokenizer.control_token(part) for part in parts]
        return [
            [token] if token is not None else spell(part)
            for part, token in zip(parts, control, strict=True)
        ]

    @pytest.mark.parametrize(
        ("template", "control", "parts"),
        [
            (
                "{{ tools }}[TOOL_CALLS]",
                ["[TOOL_CALLS]", "[ARGS]"],
                ["[TOOL_CALLS]", "weather", "[ARGS]", PARIS],
            ),
            (
                "{{ tools }}[TOOL_CALLS]",
                ["[TOOL_CALLS]"],
                ["[TOOL_CALLS]", f' [{{"name": "weather", "arguments": {PARIS}}}]'],
            ),
            (
                "{{ tools }}<|start_header_id|>",
                ["<|python_tag|>"],
                ["<|python_tag|>", f'{{"name": "weather", "parameters": {PARIS}}}'],
            ),
        ],
    )
    async def test_marks_that_are_control_tokens_are_read(
        self,
        talk: Any,
        client: openai.AsyncOpenAI,
        dispatcher: Any,
        spell: Spell,
        tokenizers: Any,
        served: Any,
        template: str,
        control: Sequence[str],
        parts: Sequence[str],
    ) -> None:
        served(template, *control)
        tokens = self.tokens(spell, tokenizers["small"], *parts)
        dispatcher.served = (replace(dispatcher.served[0], vocab_size=400),)
        dispatcher.script = [*tokens, FinishReason.STOP]
        answer: Any = await client.chat.completions.create(
            model="small", messages=talk.asked, tools=talk.tools, tool_choice="required"
        )
        (call,) = answer.choices[0].message.tool_calls
        assert (call.function.name, call.function.arguments) == ("weather", talk.arguments)
        assert answer.choices[0].message.content is None
        assert (len(call.id) == 9) == ("[TOOL_CALLS]" in template)
        grammar = dispatcher.submitted[0][1].sampling.grammar
        reading = LLTokenizer(tokenizers["small"]._inner.to_str(), eos_token=[0, 2])
        matcher = LLMatcher(reading, grammar, log_level=0)
        said = [t for part in tokens for t in part if "<|python_tag|>" not in control or t < 300]
        assert matcher.try_consume_tokens(said) == len(said)
        assert matcher.is_accepting()

    async def test_a_template_that_knows_no_tools_is_told_of_them(
        self,
        talk: Any,
        client: openai.AsyncOpenAI,
        dispatcher: Any,
        served: Any,
    ) -> None:
        served("{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}")
        dispatcher.script = talk.says(talk.call)
        function = {"name": "weather", "arguments": talk.arguments}
        history: list[Any] = [
            *talk.asked,
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "rain"},
        ]
        answer: Any = await client.chat.completions.create(
            model="small", messages=history, tools=talk.tools
        )
        assert answer.choices[0].message.tool_calls[0].function.arguments == talk.arguments
        prompt = talk.prompt()
        assert prompt.startswith("system:")
        assert '"name": "weather"' in prompt
        assert f"assistant:{talk.call}\nuser:<tool_response>\nrain\n</tool_response>" in prompt

    async def test_a_form_that_nobody_knows_is_refused(
        self, talk: Any, client: openai.AsyncOpenAI, served: Any
    ) -> None:
        served("{{ tools }} in a way of its own")
        with pytest.raises(openai.BadRequestError, match="--tool-call-parser"):
            await client.chat.completions.create(
                model="small", messages=talk.asked, tools=talk.tools
            )


async def test_over_grpc_the_same_calls_and_reasoning_are_told(
    talk: Any, dispatcher: Any, tokenizers: Any
) -> None:
    """One request path: what HTTP tells is in the messages."""
    service = GenerationService(dispatcher, tokenizers)
    function = {"name": "weather", "arguments": talk.arguments}
    history: list[Any] = [
        *talk.asked,
        {"role": "assistant", "tool_calls": [{"id": "call_1", "function": function}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    request = build_request(messages=history, tools=talk.tools, tool_choice="weather")
    dispatcher.script = talk.says(f"<think>hm</think>{talk.call}")
    response = await service.generate(request)
    assert "tool:rain=call_1" in talk.prompt()
    assert dispatcher.submitted[0][1].sampling.grammar
    (choice,) = response.choices
    assert (choice.text, choice.reasoning) == ("", "hm")
    assert [(call.name, call.arguments) for call in choice.tool_calls] == [
        ("weather", talk.arguments)
    ]
    assert choice.finish_reason == pb.FINISH_REASON_TOOL_CALLS
