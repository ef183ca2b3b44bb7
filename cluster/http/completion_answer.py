"""Answers of `POST /v1/completions`, whole and in pieces, to one prompt or several.

The answers to prompt `p` have the indices from `p * n` on. Units: characters in offsets.
"""

import codecs
from collections.abc import Sequence
from typing import Any

from blockyard.cluster.http.answer_json import (
    MadeBy,
    completion_logprobs,
    finish_reason,
    prompt_fields,
    stop_reason,
    usage_json,
)
from blockyard.protos import generation_pb2 as pb

__all__ = ["CompletionChunks", "completion"]


def completion(
    responses: Sequence[pb.GenerateResponse], num_choices: int, created: int
) -> dict[str, Any]:
    """The whole answer; `created` is in seconds since 1970."""
    choices = [
        {
            "index": number * num_choices + choice.choice,
            "text": choice.text,
            "logprobs": _logprobs(choice, response.prompt),
            "finish_reason": finish_reason(choice.finish_reason),
            "stop_reason": stop_reason(choice),
            **(prompt_fields(response.prompt) if response.HasField("prompt") else {}),
        }
        for number, response in enumerate(responses)
        for choice in response.choices
    ]
    usage, made_by = pb.Usage(), MadeBy()
    for response in responses:
        _add_usage(usage, response.usage)
        made_by.note(response)
    first = responses[0]
    return {
        **_head(first, created),
        "system_fingerprint": made_by.fingerprint,
        "choices": choices,
        "usage": usage_json(usage),
    }


class CompletionChunks:
    """The pieces of one stream, in order."""

    def __init__(self, num_choices: int, created: int, include_usage: bool) -> None:
        self._num_choices = num_choices
        self._created = created
        self._include_usage = include_usage
        self._head: dict[str, Any] = {}
        self._made_by = MadeBy()
        self._prompts: dict[int, pb.Prompt] = {}
        self._begun: set[int] = set()
        self._usage = pb.Usage()

    def pieces(self, number: int, chunk: pb.GenerateChunk) -> list[dict[str, Any]]:
        """What is sent for one chunk of the answers to prompt `number`."""
        if not self._head:
            self._head = _head(chunk, self._created)
        self._made_by.note(chunk)
        self._head["system_fingerprint"] = self._made_by.fingerprint
        if chunk.HasField("prompt"):
            self._prompts[number] = chunk.prompt
        index = number * self._num_choices + chunk.choice
        # Scores of an echoed prompt come once with each answer, before those of its tokens.
        prompt = self._prompts.get(number, pb.Prompt()) if index not in self._begun else pb.Prompt()
        self._begun.add(index)
        choice: dict[str, Any] = {
            "index": index,
            "text": chunk.text,
            "logprobs": _logprobs(chunk, prompt),
            "finish_reason": finish_reason(chunk.finish_reason),
        }
        if chunk.finish_reason:
            choice["stop_reason"] = stop_reason(chunk)
            self._end(chunk)
        if chunk.HasField("prompt"):
            choice.update(prompt_fields(chunk.prompt))
        piece = {**self._head, "choices": [choice]}
        if self._include_usage:
            piece["usage"] = None
        return [piece]

    def last(self) -> list[dict[str, Any]]:
        """What is sent after every answer has ended."""
        if not self._include_usage:
            return []
        return [{**self._head, "choices": [], "usage": usage_json(self._usage)}]

    def _end(self, chunk: pb.GenerateChunk) -> None:
        usage = pb.Usage(completion_tokens=chunk.usage.completion_tokens)
        if chunk.choice == 0:
            usage.prompt_tokens = chunk.usage.prompt_tokens
            usage.cached_tokens = chunk.usage.cached_tokens
        _add_usage(self._usage, usage)


def _logprobs(told: pb.Choice | pb.GenerateChunk, prompt: pb.Prompt) -> dict[str, Any] | None:
    """Those of the answer's tokens, after those of the prompt where it is echoed and scored."""
    entries = [*prompt.logprobs, *told.logprobs]
    if not told.logprobs:
        return None
    offsets = [*_offsets(prompt.logprobs), *(entry.text_offset for entry in told.logprobs)]
    return completion_logprobs(entries, offsets)


def _offsets(entries: Sequence[pb.TokenLogprobs]) -> list[int]:
    """Characters of the text before each token, by what the tokens spell."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    offsets: list[int] = []
    length = 0
    for entry in entries:
        offsets.append(length)
        length += len(decoder.decode(entry.bytes))
    return offsets


def _add_usage(total: pb.Usage, usage: pb.Usage) -> None:
    total.prompt_tokens += usage.prompt_tokens
    total.cached_tokens += usage.cached_tokens
    total.completion_tokens += usage.completion_tokens


def _head(told: pb.GenerateResponse | pb.GenerateChunk, created: int) -> dict[str, Any]:
    return {
        "id": f"cmpl-{told.request_id}",
        "object": "text_completion",
        "created": created,
        "model": told.model,
    }
