"""From a client's request to one that an engine can serve, or a refusal that names the field.

Everything is resolved here: defaults, the seed, end-of-text tokens, prompt tokens. Knows no
transport and no engine; an engine may still refuse what only it can know (its pool's size).
Units: tokens.
"""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from blockyard.cluster.request.chat_fields import (
    ChatTools,
    chat_tools,
    encode_chat,
    run_encoder,
    speech_plan,
)
from blockyard.cluster.request.limits import (
    check_known_fields,
    check_name,
    check_stops,
    check_text_size,
    invalid,
)
from blockyard.cluster.request.sampling_fields import check_served, num_made, resolve_sampling
from blockyard.cluster.request.speech import SpeechPlan
from blockyard.cluster.request.structure_fields import resolve_structure
from blockyard.cluster.request.tool_grammar import answer_grammar
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.description import ModelDescription

__all__ = [
    "GenerationOptions",
    "PreparedRequest",
    "client_fields",
    "prepare_request",
    "prompt_tokens",
]


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """What of a request the engine does not see.

    Attributes:
        request_id: the client's name for it, else the server's; echoed in answers.
        model: the model's name.
        adapter, adapter_version: of the adapter that was asked for in its place, if any.
        stops: texts that end the answer.
        include_stop: whether what ended the answer stays in its text.
        stop_token_ids: stop tokens that the client named.
        echo_text: what the answer's text begins with.
        tell_prompt, score_prompt: whether the prompt's tokens, and how likely they were, are told.
        speech: what is looked for in the answer, besides text.
    """

    request_id: str
    model: str
    stops: tuple[str, ...]
    include_stop: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    echo_text: str = ""
    tell_prompt: bool = False
    score_prompt: bool = False
    speech: SpeechPlan = field(default_factory=SpeechPlan)
    adapter: str = ""
    adapter_version: str = ""

    @property
    def told_model(self) -> str:
        """What the client asked for: the adapter, or the model."""
        return self.adapter or self.model


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request for an engine, and what to do with its tokens."""

    spec: RequestSpec
    options: GenerationOptions


async def prepare_request(
    request: pb.GenerateRequest, model: ModelDescription, tokenizer: ModelTokenizer
) -> PreparedRequest:
    """Check and resolve a request for `model`.

    Raises:
        ApiError: INVALID_ARGUMENT; `field` names the field at fault.
    """
    check_known_fields("request", request)
    check_name("request_id", request.request_id)
    check_name("sampling.tenant", request.sampling.tenant)
    check_served(request.sampling)
    check_stops(request.sampling.stop)
    # Parameters are checked before the prompt: they cost nothing, tokenising may.
    form = await resolve_structure(request.sampling)
    sampling = resolve_sampling(request.sampling, model, tokenizer)
    is_chat = request.WhichOneof("input") == "chat"
    tools = chat_tools(request.chat, tokenizer) if is_chat else None
    place, prompt = await prompt_tokens(request, model, tokenizer)
    _check_fit(place, len(prompt), sampling, model.context_tokens)
    speech = speech_plan(tools, prompt, tokenizer) if is_chat else SpeechPlan()
    grammar = await _grammar(request, form, tools, speech, tokenizer)
    if grammar and sampling.searches:
        raise invalid("sampling.beam_width", "does not go with a forced call; leave it out")
    sampling = replace(sampling, grammar=grammar)
    # Ids of our own keep requests apart whatever names clients choose.
    own_id = secrets.token_hex(12)
    return PreparedRequest(
        RequestSpec(
            request_id=f"{request.request_id}.{own_id}" if request.request_id else own_id,
            prompt_token_ids=prompt,
            sampling=sampling,
            priority=request.sampling.priority,
            tenant=request.sampling.tenant,
            name=request.request_id,
            num_choices=num_made(request.sampling),
        ),
        GenerationOptions(
            request.request_id or own_id,
            model.name,
            tuple(request.sampling.stop),
            include_stop=request.sampling.include_stop,
            stop_token_ids=frozenset(request.sampling.stop_token_ids),
            echo_text=_echo_text(request, prompt, tokenizer) if request.sampling.echo else "",
            tell_prompt=request.sampling.echo or sampling.prompt_logprobs is not None,
            score_prompt=sampling.prompt_logprobs is not None,
            speech=speech,
        ),
    )


def client_fields(request: pb.GenerateRequest) -> dict[str, str]:
    """What the client calls the fields that a scheduler may refuse, by the scheduler's names."""
    kind = request.WhichOneof("input")
    prompt = {"tokens": "tokens.ids", "chat": "chat.messages"}.get(kind or "", "prompt")
    sampling = ("max_tokens", "min_tokens")
    return {"prompt": prompt, "n": "sampling.n", **{name: f"sampling.{name}" for name in sampling}}


async def _grammar(
    request: pb.GenerateRequest,
    form: str,
    tools: ChatTools | None,
    speech: SpeechPlan,
    tokenizer: ModelTokenizer,
) -> str:
    """What the answer as a whole must look like; empty for any text."""
    if tools is not None and tools.forced:
        if form:
            kind = request.sampling.structure.WhichOneof("form")
            raise invalid(
                f"sampling.structure.{kind}", "does not go with a `tool_choice` that asks to call"
            )
        for name in ("ignore_eos", "min_tokens"):
            if getattr(request.sampling, name):
                raise invalid(
                    f"sampling.{name}", "does not go with a forced call, which ends itself"
                )
    elif not form:
        return ""
    try:
        return await asyncio.to_thread(answer_grammar, form, tools, speech, tokenizer.added_token)
    except ValueError as error:
        raise invalid("chat.tools", f"cannot be kept to: {str(error)[:500]}") from None


def _echo_text(
    request: pb.GenerateRequest, prompt: Sequence[int], tokenizer: ModelTokenizer
) -> str:
    return request.prompt if request.HasField("prompt") else tokenizer.decode(prompt)


async def prompt_tokens(
    request: pb.GenerateRequest, model: ModelDescription, tokenizer: ModelTokenizer
) -> tuple[str, tuple[int, ...]]:
    """The field that a prompt came from, and its tokens.

    Raises:
        ApiError: INVALID_ARGUMENT; `field` names the field at fault.
    """
    kind = request.WhichOneof("input")
    if kind == "prompt":
        size = len(request.prompt.encode())
        check_text_size("prompt", size, model.context_tokens)
        text = request.prompt
        return "prompt", await run_encoder(size, lambda: tokenizer.encode_prompt(text))
    if kind == "tokens":
        check_known_fields("tokens", request.tokens)
        vocab_size = min(model.vocab_size, tokenizer.vocab_size)
        return "tokens.ids", _token_ids(request.tokens.ids, model.context_tokens, vocab_size)
    if kind == "chat":
        tools = chat_tools(request.chat, tokenizer)
        return "chat.messages", await encode_chat(request.chat, tools, model, tokenizer)
    raise invalid("prompt", "is missing; give one of `prompt`, `tokens` or `chat`")


def _token_ids(ids: Sequence[int], context_tokens: int, vocab_size: int) -> tuple[int, ...]:
    _check_prompt_length("tokens.ids", len(ids), context_tokens)
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise invalid(
                f"tokens.ids[{index}]",
                f"is {token_id}; this model's token ids are 0 to {vocab_size - 1}",
            )
    return tuple(ids)


def _check_prompt_length(field: str, num_prompt: int, context_tokens: int) -> None:
    if num_prompt == 0:
        raise invalid(field, "is empty; give at least one token")
    if num_prompt >= context_tokens:
        raise invalid(
            field,
            f"has {num_prompt:,} tokens; the context holds {context_tokens:,}, and at least one "
            "is needed for the answer",
        )


def _check_fit(field: str, num_prompt: int, sampling: SamplingParams, context_tokens: int) -> None:
    _check_prompt_length(field, num_prompt, context_tokens)
    room = context_tokens - num_prompt
    for name, wanted in (
        ("max_tokens", sampling.max_tokens or 0),
        ("min_tokens", sampling.min_tokens),
    ):
        if wanted > room:
            raise invalid(
                f"sampling.{name}",
                f"is {wanted:,}; the context holds {context_tokens:,} tokens, of which the prompt "
                f"takes {num_prompt:,}, so at most {room:,} are left",
            )
