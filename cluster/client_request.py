"""Requests from plain values, for every client of ours. Knows no connection. Units: tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from blockyard.protos import generation_pb2
from blockyard.protos.generation_pb2 import GenerateRequest

__all__ = ["Settings", "build_request"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Sampling parameters as a caller gives them; None leaves one to the server's default."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    n: int | None = None
    best_of: int | None = None
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
    messages: Sequence[Mapping[str, str]] | None = None,
    model: str = "",
    request_id: str = "",
    settings: Settings | None = None,
) -> GenerateRequest:
    """A request from plain values. Give exactly one of prompt, token_ids and messages.

    Raises:
        ValueError: not exactly one of them, or a value that the message cannot hold.
    """
    if sum(value is not None for value in (prompt, token_ids, messages)) != 1:
        raise ValueError("give exactly one of prompt, token_ids and messages")
    request = GenerateRequest(model=model, request_id=request_id)
    if prompt is not None:
        request.prompt = prompt
    elif token_ids is not None:
        request.tokens.SetInParent()
        request.tokens.ids.extend(token_ids)
    elif messages is not None:
        request.chat.SetInParent()
        for message in messages:
            request.chat.messages.add(role=message["role"], content=message["content"])
    if settings is not None:
        _fill(request.sampling, settings)
    return request


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
