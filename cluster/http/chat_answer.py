"""Answers of `POST /v1/chat/completions`, whole and in pieces."""

from typing import Any

from blockyard.cluster.http.answer_json import (
    MadeBy,
    chat_logprobs,
    finish_reason,
    prompt_fields,
    stop_reason,
    usage_json,
)
from blockyard.protos import generation_pb2 as pb

__all__ = ["ChatChunks", "chat_completion"]


def chat_completion(
    response: pb.GenerateResponse, created: int, include_reasoning: bool = True
) -> dict[str, Any]:
    """The whole answer; `created` is in seconds since 1970."""
    made_by = MadeBy()
    made_by.note(response)
    body = {
        **_head(response, created, "chat.completion"),
        "system_fingerprint": made_by.fingerprint,
        "choices": [
            {
                "index": choice.choice,
                "message": _message(choice, include_reasoning),
                "logprobs": chat_logprobs(choice.logprobs) if choice.logprobs else None,
                "finish_reason": finish_reason(choice.finish_reason),
                "stop_reason": stop_reason(choice),
            }
            for choice in response.choices
        ],
        "usage": usage_json(response.usage),
    }
    if response.HasField("prompt"):
        body.update(prompt_fields(response.prompt))
    return body


class ChatChunks:
    """The pieces of one stream, in order."""

    def __init__(self, created: int, include_usage: bool, include_reasoning: bool = True) -> None:
        self._created = created
        self._include_reasoning = include_reasoning
        self._include_usage = include_usage
        self._begun: set[int] = set()
        self._head: dict[str, Any] = {}
        self._made_by = MadeBy()
        self._usage = pb.Usage()

    def pieces(self, chunk: pb.GenerateChunk) -> list[dict[str, Any]]:
        """What is sent for one chunk."""
        if not self._head:
            self._head = _head(chunk, self._created, "chat.completion.chunk")
        self._made_by.note(chunk)
        self._head["system_fingerprint"] = self._made_by.fingerprint
        told: list[dict[str, Any]] = []
        if chunk.choice not in self._begun:
            self._begun.add(chunk.choice)
            piece = self._piece(chunk.choice, {"role": "assistant", "content": ""})
            if chunk.HasField("prompt"):
                piece.update(prompt_fields(chunk.prompt))
            told.append(piece)
        delta: dict[str, Any] = {}
        if chunk.reasoning and self._include_reasoning:
            delta["reasoning_content"] = chunk.reasoning
        if chunk.text or (chunk.logprobs and not chunk.reasoning and not chunk.tool_calls):
            delta["content"] = chunk.text
        if chunk.tool_calls:
            delta["tool_calls"] = [_call_piece(call) for call in chunk.tool_calls]
        if delta or chunk.logprobs:
            piece = self._piece(chunk.choice, delta)
            if chunk.logprobs:
                piece["choices"][0]["logprobs"] = chat_logprobs(chunk.logprobs)
            told.append(piece)
        if chunk.finish_reason:
            piece = self._piece(chunk.choice, {})
            piece["choices"][0]["finish_reason"] = finish_reason(chunk.finish_reason)
            piece["choices"][0]["stop_reason"] = stop_reason(chunk)
            told.append(piece)
            self._usage.completion_tokens += chunk.usage.completion_tokens
            if chunk.choice == 0:
                self._usage.prompt_tokens = chunk.usage.prompt_tokens
                self._usage.cached_tokens = chunk.usage.cached_tokens
        return told

    def last(self) -> list[dict[str, Any]]:
        """What is sent after every answer has ended."""
        if not self._include_usage:
            return []
        return [{**self._head, "choices": [], "usage": usage_json(self._usage)}]

    def _piece(self, choice: int, delta: dict[str, Any]) -> dict[str, Any]:
        piece = {
            **self._head,
            "choices": [{"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}],
        }
        if self._include_usage:
            piece["usage"] = None
        return piece


def _message(choice: pb.Choice, include_reasoning: bool) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if choice.tool_calls and not choice.text else choice.text,
        "refusal": None,
    }
    if choice.reasoning and include_reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in choice.tool_calls
        ]
    return message


def _call_piece(call: pb.ToolCall) -> dict[str, Any]:
    if not call.id:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {
        "index": call.index,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _head(told: pb.GenerateResponse | pb.GenerateChunk, created: int, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{told.request_id}",
        "object": kind,
        "created": created,
        "model": told.model,
    }
