"""From a client's conversation to a prompt's tokens and what to look for in the answer.

Checks messages, tools and template variables. Knows no sampling and no engine. Units: tokens,
bytes.
"""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from blockyard.cluster.request.chat_template import ChatTemplateError
from blockyard.cluster.request.limits import (
    check_known_fields,
    check_role,
    check_text_size,
    invalid,
)
from blockyard.cluster.request.speech import SpeechPlan
from blockyard.cluster.request.speech_format import ToolFormat
from blockyard.cluster.request.tool_prompt import without_tools
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.workers.description import ModelDescription

__all__ = ["ChatTools", "chat_tools", "encode_chat", "run_encoder", "speech_plan"]

MAX_TOOLS = 128
MAX_NESTING = 64
"""Levels of a JSON object that is given as a text."""
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_QUICK_TEXT_BYTES = 8192
"""Texts up to this are tokenised at once; larger ones in a thread, so that streams go on."""

_TAIL_TOKENS = 16
"""More than a tag at the end of a prompt has."""


@dataclass(frozen=True, slots=True)
class ChatTools:
    """Functions that one request offers.

    Attributes:
        format: how the model writes calls of them.
        schemas: JSON schemas of their arguments, by name, in the client's order.
        described: the functions as templates read them.
        forced: names of those of which one must be called; empty leaves it to the model.
        most_calls: calls after which an answer is over; None means any number.
    """

    format: ToolFormat
    schemas: Mapping[str, Mapping[str, Any]]
    described: tuple[Mapping[str, Any], ...]
    forced: tuple[str, ...] = ()
    most_calls: int | None = None


def chat_tools(chat: pb.ChatMessages, tokenizer: ModelTokenizer) -> ChatTools | None:
    """The functions that may be called; None when there are none.

    Raises:
        ApiError: INVALID_ARGUMENT naming the field.
    """
    choice = chat.tool_choice
    if chat.tool_name and choice != pb.TOOL_CHOICE_NAMED:
        raise invalid("chat.tool_name", "is given, but `tool_choice` is not TOOL_CHOICE_NAMED")
    if len(chat.tools) > MAX_TOOLS:
        raise invalid("chat.tools", f"has {len(chat.tools):,}; at most {MAX_TOOLS} are taken")
    described = tuple(_described(index, tool) for index, tool in enumerate(chat.tools))
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in described}
    if len(schemas) < len(described):
        raise invalid("chat.tools", "has two functions of one name")
    if choice not in pb.ToolChoice.values():
        raise invalid("chat.tool_choice", f"is {choice}, which is not known here")
    if not described and choice in (pb.TOOL_CHOICE_REQUIRED, pb.TOOL_CHOICE_NAMED):
        raise invalid("chat.tool_choice", "asks for a call, but there are no tools")
    if choice == pb.TOOL_CHOICE_NAMED and chat.tool_name not in schemas:
        known = ", ".join(schemas)
        raise invalid("chat.tool_name", f"is {chat.tool_name[:64]!r}; the tools are {known}"[:400])
    if not described or choice == pb.TOOL_CHOICE_NONE:
        return None
    tool_format = tokenizer.speech.tools
    if tool_format is None:
        raise invalid(
            "chat.tools",
            "cannot be served: how this model writes calls is not known here; its operator can "
            "name the format with `--tool-call-parser`",
        )
    named = choice == pb.TOOL_CHOICE_NAMED
    forced = (chat.tool_name,) if named else tuple(schemas)
    single = named or (chat.HasField("parallel_tool_calls") and not chat.parallel_tool_calls)
    return ChatTools(
        tool_format,
        schemas,
        described,
        forced if named or choice == pb.TOOL_CHOICE_REQUIRED else (),
        1 if single else None,
    )


async def encode_chat(
    chat: pb.ChatMessages,
    tools: ChatTools | None,
    model: ModelDescription,
    tokenizer: ModelTokenizer,
) -> tuple[int, ...]:
    """Tokens of a conversation, up to where the assistant is to speak.

    Raises:
        ApiError: INVALID_ARGUMENT naming the field.
    """
    check_known_fields("chat", chat)
    if not chat.messages:
        raise invalid("chat.messages", "is empty; give at least one message")
    # A message costs tokens even when its content is empty.
    if len(chat.messages) >= model.context_tokens:
        raise invalid(
            "chat.messages",
            f"has {len(chat.messages):,} messages; the context holds {model.context_tokens:,} "
            "tokens",
        )
    messages = [_message(index, message) for index, message in enumerate(chat.messages)]
    last = chat.messages[-1]
    if not last.content.strip() and not last.tool_calls and last.role != "tool":
        raise invalid(
            f"chat.messages[{len(messages) - 1}].content", "is empty; say something to answer"
        )
    size = _text_bytes(chat)
    check_text_size("chat.messages", size, model.context_tokens)
    variables = _variables(chat.template_variables, tokenizer)
    described = tools.described if tools is not None else ()
    if not tokenizer.speech.tells_tools:
        messages = without_tools(messages, described, tokenizer.speech.tools or ToolFormat.HERMES)
        described = ()
    try:
        return await run_encoder(
            size, lambda: tokenizer.encode_chat(messages, described, variables)
        )
    except ChatTemplateError as error:
        raise invalid("chat.messages", str(error)) from None


def speech_plan(
    tools: ChatTools | None, prompt: tuple[int, ...], tokenizer: ModelTokenizer
) -> SpeechPlan:
    """What to look for in the answers to a conversation, whose tokens are `prompt`."""
    reasoning = tokenizer.speech.reasoning
    tail = tokenizer.decode_all(prompt[-_TAIL_TOKENS:]).rstrip() if reasoning is not None else ""
    begun = reasoning is not None and tail.endswith(reasoning.begin)
    if tools is None:
        return SpeechPlan(reasoning=reasoning, begun=begun)
    names = frozenset(tools.schemas)
    return SpeechPlan(tools.format, names, tools.most_calls, reasoning, begun)


async def run_encoder(num_bytes: int, encode: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
    """Tokenise here or, when it takes long, beside the event loop."""
    return encode() if num_bytes <= _QUICK_TEXT_BYTES else await asyncio.to_thread(encode)


def _text_bytes(chat: pb.ChatMessages) -> int:
    """Bytes of all that may be laid out."""
    extras = (*chat.tools, *(call for message in chat.messages for call in message.tool_calls))
    said = sum(
        len(f"{message.content}{message.reasoning}{message.name}{message.tool_call_id}".encode())
        for message in chat.messages
    )
    laid_out: int = said + sum(extra.ByteSize() for extra in extras)
    laid_out += len(chat.template_variables.encode())
    return laid_out


def _described(index: int, tool: pb.Tool) -> dict[str, Any]:
    field = f"chat.tools[{index}]"
    check_known_fields(field, tool)
    if not _TOOL_NAME.fullmatch(tool.name):
        raise invalid(
            f"{field}.name",
            f"is {tool.name[:40]!r} ({len(tool.name)} characters); give 1 to 64 letters, digits "
            "and _ . -",
        )
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    if tool.parameters:
        parameters = _object(f"{field}.parameters", tool.parameters)
        if parameters.setdefault("type", "object") != "object":
            raise invalid(f"{field}.parameters", "must describe an object: `type` is `object`")
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _message(index: int, message: pb.ChatMessage) -> dict[str, Any]:
    """A message as templates read it."""
    field = f"chat.messages[{index}]"
    check_known_fields(field, message)
    check_role(f"{field}.role", message.role)
    told: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls and message.role != "assistant":
        raise invalid(f"{field}.tool_calls", f"is given by {message.role!r}; assistants call")
    if message.tool_calls:
        told["tool_calls"] = [
            _call(f"{field}.tool_calls[{number}]", call)
            for number, call in enumerate(message.tool_calls)
        ]
    for name in ("tool_call_id", "name"):
        if value := getattr(message, name):
            told[name] = value
    if message.reasoning:
        told["reasoning_content"] = message.reasoning
    return told


def _call(field: str, call: pb.ToolCall) -> dict[str, Any]:
    check_known_fields(field, call)
    if not _TOOL_NAME.fullmatch(call.name):
        raise invalid(f"{field}.name", f"is {call.name[:40]!r}, which is no name of a function")
    arguments = _object(f"{field}.arguments", call.arguments) if call.arguments.strip() else {}
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _variables(text: str, tokenizer: ModelTokenizer) -> dict[str, Any]:
    if not text:
        return {}
    variables = _object("chat.template_variables", text)
    known = tokenizer.template_variables
    for name in variables:
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise invalid(
                "chat.template_variables",
                f"has {name[:40]!r}, which this model's template does not use; it uses {names}",
            )
    return variables


def _object(field: str, text: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise invalid(field, "is not JSON") from None
    if not isinstance(value, dict):
        raise invalid(field, "is not a JSON object")
    if _is_deep(value):
        raise invalid(field, f"is nested more than {MAX_NESTING} deep")
    if "\\u" in text:
        # An escape can be half a character, which is no text. Models write some, and what they
        # said comes back in the next turn: it is read as a mark instead of being refused.
        whole = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        return dict(json.loads(whole))
    return value


def _is_deep(value: Any) -> bool:
    """Whether lists and objects lie in one another deeper than is read; without recursion."""
    level = [value]
    for _ in range(MAX_NESTING):
        inner = [part.values() if isinstance(part, dict) else part for part in level]
        level = [each for parts in inner for each in parts if isinstance(each, dict | list)]
        if not level:
            return False
    return True
