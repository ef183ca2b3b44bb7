"""A model whose template knows tools and reasoning, and what is said to it and by it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tokenizers import Tokenizer

from blockyard.cluster.request.chat_template import ChatTemplate
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.scheduler.request import FinishReason
from blockyard.workers.description import ModelDescription

CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}},
    "required": ["city"],
    "$defs": {"name": {"type": "string", "maxLength": 8}},
}
TEMPLATE = """
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}
{%- for message in messages %}{{ message.role }}:{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function.arguments.city }}{% endfor %}
{%- if message.role == 'tool' %}={{ message.tool_call_id }}{% endif %}
{%- if message.reasoning_content %}?{{ message.reasoning_content }}{% endif %}
{% endfor %}
{%- if add_generation_prompt %}assistant:{% if enable_thinking %}<think>\n{% endif %}{% endif %}
{#- </think> #}"""


@dataclass(frozen=True)
class Talk:
    """Two functions, messages that ask, and answers that call the functions."""

    dispatcher: Any
    tokenizers: dict[str, ModelTokenizer]
    spell: Callable[[str], list[int]]
    city = CITY
    tools = (
        {
            "type": "function",
            "function": {"name": "weather", "description": "W", "parameters": CITY},
        },
        {"type": "function", "function": {"name": "stop"}},
    )
    asked = ({"role": "user", "content": "hello"},)
    arguments = '{"city": "Paris"}'
    call = f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>'
    stop = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'

    def says(self, text: str, end: FinishReason = FinishReason.STOP) -> list[Any]:
        """A script for the dispatcher: a token at a time."""
        return [*([token] for token in self.spell(text)), end]

    def prompt(self) -> str:
        """What the newest request has the model read."""
        spec = self.dispatcher.submitted[-1][1]
        return str(self.tokenizers["small"].decode_all(spec.prompt_token_ids))


@pytest.fixture
def template() -> str:
    return TEMPLATE


@pytest.fixture
def description(description: ModelDescription) -> ModelDescription:
    return replace(description, context_tokens=2048)


@pytest.fixture
def tokenizers(inner_tokenizer: Tokenizer, template: str) -> dict[str, ModelTokenizer]:
    inner = Tokenizer.from_str(inner_tokenizer.to_str())
    return {"small": ModelTokenizer(inner, ChatTemplate(template, {}))}


@pytest.fixture
def talk(
    dispatcher: Any, tokenizers: dict[str, ModelTokenizer], spell: Callable[[str], list[int]]
) -> Talk:
    return Talk(dispatcher, tokenizers, spell)
