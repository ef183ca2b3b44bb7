"""Parts of answers that chat and text completions tell alike: usage, ends, log probabilities."""

from collections.abc import Sequence
from typing import Any

from blockyard.protos import generation_pb2 as pb

__all__ = [
    "MadeBy",
    "chat_logprobs",
    "completion_logprobs",
    "finish_reason",
    "prompt_fields",
    "stop_reason",
    "token_text",
    "usage_json",
]

_FINISH_REASONS = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_ABORT: "abort",
    pb.FINISH_REASON_TOOL_CALLS: "tool_calls",
}

_LEAST_LOGPROB = -9999.0
"""What OpenAI says of a token that could not be; JSON has no infinity."""


class MadeBy:
    """What has made the tokens of an answer so far, as OpenAI's `system_fingerprint` tells it.

    Versions of weights in order, joined by `+`, then the adapter's behind a `/`.
    """

    def __init__(self) -> None:
        self._weights: dict[str, None] = {}
        self._adapter = ""

    def note(self, told: pb.GenerateResponse | pb.GenerateChunk) -> None:
        """Take what an answer, or a piece of one, tells."""
        self._weights.update(dict.fromkeys(told.weight_versions))
        self._adapter = self._adapter or told.adapter_version

    @property
    def fingerprint(self) -> str | None:
        """None while there are no tokens."""
        if not self._weights:
            return None
        weights = "+".join(self._weights)
        return f"{weights}/{self._adapter}" if self._adapter else weights


def usage_json(usage: pb.Usage) -> dict[str, Any]:
    """Tokens, with those that were found in memory."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def finish_reason(reason: pb.FinishReason) -> str | None:
    """Why an answer ended; None while it has not."""
    return _FINISH_REASONS.get(reason)


def stop_reason(ended: pb.Choice | pb.GenerateChunk) -> str | int | None:
    """The stop text or the client's stop token that ended an answer."""
    if ended.HasField("stop_text"):
        return ended.stop_text
    return ended.stop_token_id if ended.HasField("stop_token_id") else None


def token_text(spelled: bytes) -> str:
    """A token as text; one that is a part of a character is written as OpenAI writes it."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def chat_logprobs(entries: Sequence[pb.TokenLogprobs]) -> dict[str, Any]:
    """`logprobs` of a chat's choice."""
    return {
        "content": [
            {
                **_chat_token(entry.bytes, entry.logprob),
                "top_logprobs": [_chat_token(top.bytes, top.logprob) for top in entry.top],
            }
            for entry in entries
        ],
        "refusal": None,
    }


def completion_logprobs(
    entries: Sequence[pb.TokenLogprobs], offsets: Sequence[int]
) -> dict[str, Any]:
    """`logprobs` of a text completion's choice: parallel lists, the token itself in each list."""
    return {
        "tokens": [token_text(entry.bytes) for entry in entries],
        "token_logprobs": [
            _finite(entry.logprob) if entry.HasField("logprob") else None for entry in entries
        ],
        "top_logprobs": [_top_by_text(entry) for entry in entries],
        "text_offset": list(offsets),
    }


def prompt_fields(prompt: pb.Prompt) -> dict[str, Any]:
    """The prompt as the model saw it, where it is told."""
    fields: dict[str, Any] = {"prompt_token_ids": list(prompt.token_ids)}
    if prompt.logprobs:
        fields["prompt_logprobs"] = [_prompt_token(entry) for entry in prompt.logprobs]
    return fields


def _chat_token(spelled: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token_text(spelled), "logprob": _finite(logprob), "bytes": list(spelled)}


def _top_by_text(entry: pb.TokenLogprobs) -> dict[str, float] | None:
    if not entry.HasField("logprob"):
        return None
    by_text = {token_text(top.bytes): _finite(top.logprob) for top in entry.top}
    return {**by_text, token_text(entry.bytes): _finite(entry.logprob)}


def _prompt_token(entry: pb.TokenLogprobs) -> dict[str, Any] | None:
    """By token id: the token itself, and the likeliest in its place, with their ranks."""
    if not entry.HasField("logprob"):
        return None
    tops = [(top.token_id, top.logprob, rank, top.bytes) for rank, top in enumerate(entry.top, 1)]
    own = (entry.token_id, entry.logprob, entry.rank, entry.bytes)
    return {
        str(token_id): {
            "logprob": _finite(logprob),
            "rank": rank,
            "decoded_token": token_text(spelled),
        }
        for token_id, logprob, rank, spelled in (*tops, own)
    }


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)
