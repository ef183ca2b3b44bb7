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

Spell = Callable[[str], list[int]]
MARKS = ("</think>", "<tool_call>", "</tool_call>")


class TestForcedCalls:
    @pytest.fixture
    def accepts(self, inner_tokenizer: Tokenizer) -> Callable[[str, str], bool]:
        reading = LLTokenizer(inner_tokenizer.to_str(), eos_token=[0, 2])

        def accepts(grammar: str, text: str) -> bool:
            matcher = LLMatcher(reading, grammar, log_level=0)
            tokens = reading.tokenize_str(text)
            return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

        return accepts

    async def grammar(self, talk: Any, client: Any, dispatcher: Any, **asked: Any) -> str:
        await client.chat.completions.create(
            model="small", messages=talk.asked, tools=talk.tools, **asked
        )
        return str(dispatcher.submitted[-1][1].sampling.grammar)

    async def test_some_call_is_required(
        self, talk: Any, client: Any, dispatcher: Any, accepts: Any
    ) -> None:
        dispatcher.script = talk.says(talk.call)
        grammar = await self.grammar(talk, client, dispatcher, tool_choice="required")
        assert accepts(grammar, talk.call)
        assert accepts(grammar, f"{talk.call}\n{talk.stop}")
        assert accepts(grammar, f"<think>so</think>{talk.stop}")
        assert not accepts(grammar, "Hello")
        assert not accepts(grammar, talk.call.replace("Paris", "too long for it"))
        assert not accepts(grammar, talk.call.replace("weather", "other"))

    async def test_one_call_is_required(
        self, talk: Any, client: Any, dispatcher: Any, accepts: Any
    ) -> None:
        dispatcher.script = talk.says(talk.call)
        grammar = await self.grammar(
            talk, client, dispatcher, tool_choice="required", parallel_tool_calls=False
        )
        assert accepts(grammar, talk.call)
        assert not accepts(grammar, f"{talk.call}\n{talk.stop}")

    async def test_one_function_is_named(
        self, talk: Any, client: Any, dispatcher: Any, accepts: Any
    ) -> None:
        dispatcher.script = talk.says(talk.call)
        named = {"type": "function", "function": {"name": "weather"}}
        grammar = await self.grammar(talk, client, dispatcher, tool_choice=named)
        assert accepts(grammar, talk.call)
        assert not accepts(grammar, talk.stop)

    async def test_thinking_comes_first_where_the_prompt_began_it(
        self, talk: Any, client: Any, dispatcher: Any, accepts: Any
    ) -> None:
        dispatcher.script = talk.says(f"so</think>{talk.call}")
        grammar = await self.grammar(
            talk,
            client,
            dispatcher,
            tool_choice="required",
            extra_body={"chat_template_kwargs": {"enable_thinking": True}},
        )
        assert accepts(grammar, f"so</think>\n\n{talk.call}")
        assert not accepts(grammar, talk.call)

    async def test_a_form_holds_beside_calls_and_behind_thinking(
        self, talk: Any, client: Any, dispatcher: Any, accepts: Any
    ) -> None:
        dispatcher.script = talk.says(talk.call)
        for form, fits in (({"regex": "a|b"}, "b"), ({"json": talk.city}, talk.arguments)):
            grammar = await self.grammar(
                talk, client, dispatcher, extra_body={"structured_outputs": form}
            )
            assert accepts(grammar, fits)
            assert accepts(grammar, f"<think>so</think>\n{fits}")
            assert accepts(grammar, talk.call)
            assert not accepts(grammar, "c")


async def test_marks_that_are_added_tokens_are_asked_for_as_such(
    talk: Any,
    client: openai.AsyncOpenAI,
    dispatcher: Any,
    tokenizers: Any,
    inner_tokenizer: Tokenizer,
    template: str,
) -> None:
    """As Qwen has them: added to the vocabulary, and no control tokens."""
    inner = Tokenizer.from_str(inner_tokenizer.to_str())
    inner.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    tokenizers["small"] = ModelTokenizer(inner, ChatTemplate(template, {}))
    said = inner.encode(f"<think>\nhm\n</think>\n\n{talk.call}\n{talk.stop}").ids
    assert {inner.token_to_id(mark) for mark in MARKS} < set(said)
    dispatcher.served = (replace(dispatcher.served[0], vocab_size=400),)
    dispatcher.script = [*([token] for token in said), FinishReason.STOP]
    answer: Any = await client.chat.completions.create(
        model="small", messages=talk.asked, tools=talk.tools, tool_choice="required"
    )
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("hm", None)
    assert [call.function.name for call in message.tool_calls] == ["weather", "stop"]
    reading = LLTokenizer(inner.to_str(), eos_token=[0, 2])
    matcher = LLMatcher(reading, dispatcher.submitted[0][1].sampling.grammar, log_level=0)
    assert matcher.try_consume_tokens(said) == len(said)
    assert matcher.is_accepting()
