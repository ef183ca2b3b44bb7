"""Calls that are asked for are kept to by a grammar, and so are forms beside calls."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer

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
PARIS = '{"city": "Paris"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>'
MARKS = ("</think>", "<tool_call>", "</tool_call>")
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


class TestForcedCalls:
    @pytest.fixture
    def accepts(self, inner_tokenizer: Tokenizer) -> Callable[[str, str], bool]:
        reading = LLTokenizer(inner_tokenizer.to_str(), eos_token=[0, 2])

        def accepts(grammar: str, text: str) -> bool:
            matcher = LLMatcher(reading, grammar, log_level=0)
            tokens = reading.tokenize_str(text)
            return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

        return accepts

    async def grammar(self, client: Any, dispatcher: Any, **asked: Any) -> str:
        await client.chat.completions.create(model="small", messages=ASKED, tools=TOOLS, **asked)
        return str(dispatcher.submitted[-1][1].sampling.grammar)

    async def test_some_call_is_required(
        self, client: Any, dispatcher: Any, spell: Spell, accepts: Any
    ) -> None:
        dispatcher.script = says(spell, CALL)
        grammar = await self.grammar(client, dispatcher, tool_choice="required")
        assert accepts(grammar, CALL)
        assert accepts(grammar, f"{CALL}\n{STOP}")
        assert accepts(grammar, f"<think>so</think>{STOP}")
        assert not accepts(grammar, "Hello")
        assert not accepts(grammar, CALL.replace("Paris", "too long for it"))
        assert not accepts(grammar, CALL.replace("weather", "other"))

    async def test_one_call_is_required(
        self, client: Any, dispatcher: Any, spell: Spell, accepts: Any
    ) -> None:
        dispatcher.script = says(spell, CALL)
        grammar = await self.grammar(
            client, dispatcher, tool_choice="required", parallel_tool_calls=False
        )
        assert accepts(grammar, CALL)
        assert not accepts(grammar, f"{CALL}\n{STOP}")

    async def test_one_function_is_named(
        self, client: Any, dispatcher: Any, spell: Spell, accepts: Any
    ) -> None:
        dispatcher.script = says(spell, CALL)
        named = {"type": "function", "function": {"name": "weather"}}
        grammar = await self.grammar(client, dispatcher, tool_choice=named)
        assert accepts(grammar, CALL)
        assert not accepts(grammar, STOP)

    async def test_thinking_comes_first_where_the_prompt_began_it(
        self, client: Any, dispatcher: Any, spell: Spell, accepts: Any
    ) -> None:
        dispatcher.script = says(spell, f"so</think>{CALL}")
        grammar = await self.grammar(
            client,
            dispatcher,
            tool_choice="required",
            extra_body={"chat_template_kwargs": {"enable_thinking": True}},
        )
        assert accepts(grammar, f"so</think>\n\n{CALL}")
        assert not accepts(grammar, CALL)

    async def test_a_form_holds_beside_calls_and_behind_thinking(
        self, client: Any, dispatcher: Any, spell: Spell, accepts: Any
    ) -> None:
        dispatcher.script = says(spell, CALL)
        for form, fits in (({"regex": "a|b"}, "b"), ({"json": CITY}, PARIS)):
            grammar = await self.grammar(
                client, dispatcher, extra_body={"structured_outputs": form}
            )
            assert accepts(grammar, fits)
            assert accepts(grammar, f"<think>so</think>\n{fits}")
            assert accepts(grammar, CALL)
            assert not accepts(grammar, "c")


async def test_marks_that_are_added_tokens_are_asked_for_as_such(
    client: openai.AsyncOpenAI,
    dispatcher: Any,
    spell: Spell,
    tokenizers: Any,
    inner_tokenizer: Tokenizer,
) -> None:
    """As Qwen has them: added to the vocabulary, and no control tokens."""
    inner = Tokenizer.from_str(inner_tokenizer.to_str())
    inner.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    tokenizers["small"] = ModelTokenizer(inner, ChatTemplate(TEMPLATE, {}))
    said = inner.encode(f"<think>\nhm\n</think>\n\n{CALL}\n{STOP}").ids
    assert {inner.token_to_id(mark) for mark in MARKS} < set(said)
    dispatcher.served = (replace(dispatcher.served[0], vocab_size=400),)
    dispatcher.script = [*([token] for token in said), FinishReason.STOP]
    answer: Any = await client.chat.completions.create(
        model="small", messages=ASKED, tools=TOOLS, tool_choice="required"
    )
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("hm", None)
    assert [call.function.name for call in message.tool_calls] == ["weather", "stop"]
    reading = LLTokenizer(inner.to_str(), eos_token=[0, 2])
    matcher = LLMatcher(reading, dispatcher.submitted[0][1].sampling.grammar, log_level=0)
    assert matcher.try_consume_tokens(said) == len(said)
    assert matcher.is_accepting()
