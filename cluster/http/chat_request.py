"""`POST /v1/chat/completions`: from its JSON to the one request message."""

from dataclasses import dataclass

from blockyard.cluster.http.beam_request import read_beams
from blockyard.cluster.http.json_fields import JsonFields
from blockyard.cluster.http.resumable_events import read_resume_seconds
from blockyard.cluster.http.sampling_request import read_sampling
from blockyard.cluster.http.tool_request import read_calls, read_tools
from blockyard.cluster.request.limits import invalid
from blockyard.protos import generation_pb2 as pb

__all__ = ["ChatRequest", "read_chat_request", "read_messages", "read_stream_options"]

_MOST_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What is asked of the request path, and how the answer is to be told."""

    message: pb.GenerateRequest
    stream: bool
    include_usage: bool
    include_reasoning: bool = True


def read_chat_request(body: object) -> ChatRequest:
    """Read and check the shape; what the values mean is checked by the request path.

    Raises:
        ApiError: INVALID_ARGUMENT naming the field.
    """
    fields = JsonFields(body)
    request = pb.GenerateRequest(
        model=fields.text("model") or "", request_id=fields.text("request_id") or ""
    )
    read_messages(fields, request.chat)
    read_tools(fields, request.chat)
    include_reasoning = fields.flag("include_reasoning")
    sampling = request.sampling
    tokens = {
        name: wanted
        for name in ("max_completion_tokens", "max_tokens")
        if (wanted := fields.whole(name)) is not None
    }
    if len(set(tokens.values())) > 1:
        raise invalid("max_tokens", "differs from max_completion_tokens; give one of them")
    for wanted in tokens.values():
        sampling.max_tokens = wanted
    wants_logprobs = fields.flag("logprobs")
    top_logprobs = fields.whole("top_logprobs")
    if wants_logprobs:
        _check_top_logprobs(top_logprobs)
        sampling.logprobs = top_logprobs or 0
    elif top_logprobs:
        raise invalid("top_logprobs", "is given without `logprobs: true`")
    read_sampling(fields, sampling)
    stream = fields.flag("stream") or False
    include_usage = read_stream_options(fields, stream)
    read_resume_seconds(fields, request, stream)
    read_beams(fields, sampling, stream)
    _refuse_not_served(fields)
    fields.refuse_rest()
    return ChatRequest(request, stream, include_usage, include_reasoning is not False)


def read_messages(fields: JsonFields, chat: pb.ChatMessages) -> None:
    """Move `messages` to the chat."""
    chat.SetInParent()
    for index, entry in enumerate(fields.objects("messages")):
        message = JsonFields(entry, f"messages[{index}]")
        role = message.text("role")
        if role is None:
            raise invalid(message.name("role"), "is missing")
        # A developer says to newer models what the system says to all others.
        told = chat.messages.add(role="system" if role == "developer" else role)
        told.content = _read_content(message)
        name = message.text("name") or ""
        if role == "tool":  # other names are of people, whom templates do not tell apart
            told.name, told.tool_call_id = name, message.text("tool_call_id") or ""
        if role == "assistant":
            told.reasoning = message.text("reasoning_content") or message.text("reasoning") or ""
            read_calls(message, told)
        for empty in ("annotations", "audio", "function_call"):
            if message.take(empty):
                raise invalid(message.name(empty), "is not read here; leave it out")
        message.take("refusal")
        message.refuse_rest()


def read_stream_options(fields: JsonFields, stream: bool) -> bool:
    """Whether usage is to be told at the end of a stream."""
    options = fields.take("stream_options")
    if options is None:
        return False
    if not stream:
        raise invalid("stream_options", "is given without `stream: true`")
    reader = JsonFields(options, "stream_options")
    include_usage = reader.flag("include_usage") or False
    reader.take("include_obfuscation")
    reader.refuse_rest()
    return include_usage


def _read_content(message: JsonFields) -> str:
    """A message's text, whole or in parts."""
    content = message.take("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(message.name("content"), "must be a string or a list of parts")
    texts = []
    for index, entry in enumerate(content):
        part = JsonFields(entry, message.name(f"content[{index}]"))
        if (kind := part.text("type")) not in ("text", "refusal"):
            raise invalid(part.name("type"), f"is {kind!r}; this server reads text alone")
        texts.append(part.text("text" if kind == "text" else "refusal") or "")
        part.refuse_rest()
    return "".join(texts)


def _check_top_logprobs(top_logprobs: int | None) -> None:
    if top_logprobs is not None and not 0 <= top_logprobs <= _MOST_TOP_LOGPROBS:
        raise invalid(
            "top_logprobs", f"is {top_logprobs}; it must be from 0 to {_MOST_TOP_LOGPROBS}"
        )


def _refuse_not_served(fields: JsonFields) -> None:
    """Take what says nothing beyond the defaults, refuse what would have to be ignored."""
    if fields.flag("store"):
        raise invalid("store", "is true, but nothing is stored here")
    modalities = fields.texts("modalities")
    if modalities not in ([], ["text"]):
        raise invalid("modalities", "may only be `text`")
    if (tier := fields.text("service_tier")) not in (None, "auto", "default"):
        raise invalid("service_tier", f"is {tier!r}; there is only the default one")
