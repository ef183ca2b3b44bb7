"""Requests from plain values, for every client of ours. Knows no connection. Units: tokens."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blockyard.protos import generation_pb2
from blockyard.protos.generation_pb2 import GenerateRequest

__all__ = ["Settings", "build_request"]


_TOOL_CHOICES = {
    "auto": generation_pb2.TOOL_CHOICE_AUTO,
    "none": generation_pb2.TOOL_CHOICE_NONE,
    "required": generation_pb2.TOOL_CHOICE_REQUIRED,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Sampling parameters as a caller gives them; None leaves one to the server's default."""

    max_tokens: int | None = None
    temperature: float | None = None
    fallback_temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    n: int | None = None
    best_of: int | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    min_p: float | None = None
    typical_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_stop: bool | None = None
    echo: bool | None = None
    tenant: str | None = None
    structure: generation_pb2.Structure | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    allowed_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)


def build_request(
    *,
    prompt: str | None = None,
    token_ids: Sequence[int] | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    tool_choice: str = "",
    model: str = "",
    request_id: str = "",
    settings: Settings | None = None,
    resume_seconds: float | None = None,
) -> GenerateRequest:
    """A request from plain values. Give exactly one of prompt, token_ids and messages.

    Messages, and the `tools` that go with them, are as OpenAI's API has them. `tool_choice` is
    `auto`, `none`, `required` or the name of one of the tools; empty is the server's default.

    Raises:
        ValueError: not exactly one of them, or a value that the message cannot hold.
    """
    if sum(value is not None for value in (prompt, token_ids, messages)) != 1:
        raise ValueError("give exactly one of prompt, token_ids and messages")
    request = GenerateRequest(model=model, request_id=request_id, resume_seconds=resume_seconds)
    if prompt is not None:
        request.prompt = prompt
    elif token_ids is not None:
        request.tokens.SetInParent()
        request.tokens.ids.extend(token_ids)
    elif messages is not None:
        request.chat.SetInParent()
        for message in messages:
            _add_message(request.chat, message)
        _add_tools(request.chat, tools, tool_choice)
    if settings is not None:
        _fill(request.sampling, settings)
    return request


def _add_message(chat: generation_pb2.ChatMessages, message: Mapping[str, Any]) -> None:
    told = chat.messages.add(role=message["role"], content=message.get("content") or "")
    told.tool_call_id = message.get("tool_call_id") or ""
    told.reasoning = message.get("reasoning_content") or ""
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        told.tool_calls.add(
            index=index,
            id=call.get("id", ""),
            name=function["name"],
            arguments=function["arguments"],
        )


def _add_tools(
    chat: generation_pb2.ChatMessages, tools: Sequence[Mapping[str, Any]], choice: str
) -> None:
    for tool in tools:
        function = tool["function"]
        chat.tools.add(
            name=function["name"],
            description=function.get("description", ""),
            parameters=json.dumps(function.get("parameters") or {}),
        )
    if choice in _TOOL_CHOICES:
        chat.tool_choice = _TOOL_CHOICES[choice]
    elif choice:
        chat.tool_choice = generation_pb2.TOOL_CHOICE_NAMED
        chat.tool_name = choice


def _fill(sampling: generation_pb2.SamplingParameters, settings: Settings) -> None:
    for name in Settings.__slots__:
        value = getattr(settings, name)
        if name == "logit_bias":
            sampling.logit_bias.update(value)
        elif name == "structure":
            if value is not None:
                sampling.structure.CopyFrom(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            getattr(sampling, name).extend(value)
        elif value is not None:
            setattr(sampling, name, value)
