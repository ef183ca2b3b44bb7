"""`POST /v1/responses`: from its JSON to the one request message.

Nothing is stored here, so a conversation is sent as a whole each time: `previous_response_id` is
refused.
"""

from dataclasses import dataclass
from typing import Any

from blockyard.cluster.http.json_fields import JsonFields
from blockyard.cluster.http.resumable_events import read_resume_seconds
from blockyard.cluster.http.sampling_request import read_sampling
from blockyard.cluster.http.structure_request import read_structure_format
from blockyard.cluster.http.tool_request import read_tools
from blockyard.cluster.request.limits import invalid
from blockyard.protos import generation_pb2 as pb

__all__ = ["ResponseRequest", "read_response_request"]

_TEXT_PARTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
_ECHOED = ("metadata", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p")


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """What is asked of the request path, and what the answer repeats of the question."""

    message: pb.GenerateRequest
    stream: bool
    echoed: dict[str, Any]


def read_response_request(body: object) -> ResponseRequest:
    """Read and check the shape; what the values mean is checked by the request path.

    Raises:
        ApiError: INVALID_ARGUMENT naming the field.
    """
    fields = JsonFields(body)
    given: dict[str, Any] = dict(body) if isinstance(body, dict) else {}
    request = pb.GenerateRequest(
        model=fields.text("model") or "", request_id=fields.text("request_id") or ""
    )
    chat, sampling = request.chat, request.sampling
    chat.SetInParent()
    instructions = fields.text("instructions")
    if instructions:
        chat.messages.add(role="system", content=instructions)
    _read_input(fields.take("input"), chat)
    _read_reasoning(fields, chat)
    read_tools(fields, chat)
    most = fields.whole("max_output_tokens")
    if most is not None:
        sampling.max_tokens = most
    text = _read_text_format(fields, sampling)
    _read_top_logprobs(fields)
    read_sampling(fields, sampling)
    if sampling.n > 1:
        raise invalid("n", "is given; a response is one answer")
    stream = fields.flag("stream") or False
    read_resume_seconds(fields, request, stream)
    _refuse_not_served(fields)
    fields.refuse_rest()
    echoed = {name: given[name] for name in _ECHOED if given.get(name) is not None}
    echoed |= {"instructions": instructions, "max_output_tokens": most, "text": text}
    return ResponseRequest(request, stream, echoed)


def _read_input(given: object, chat: pb.ChatMessages) -> None:
    if isinstance(given, str):
        chat.messages.add(role="user", content=given)
        return
    if not isinstance(given, list) or not given:
        raise invalid("input", "must be a string or a list of items, and not an empty one")
    reasoning = ""
    for index, entry in enumerate(given):
        item = JsonFields(entry, f"input[{index}]")
        kind = item.text("type") or "message"
        item.take("id")
        item.take("status")
        if kind == "reasoning":
            reasoning += _read_thought(item)
        elif kind == "message":
            message = _read_message(item, chat)
            if message.role == "assistant":
                message.reasoning, reasoning = reasoning, ""
        elif kind == "function_call":
            message = _assistant(chat)
            message.reasoning, reasoning = message.reasoning or reasoning, ""
            message.tool_calls.add(
                index=len(message.tool_calls),
                id=item.text("call_id") or "",
                name=item.text("name") or "",
                arguments=item.text("arguments") or "",
            )
        elif kind == "function_call_output":
            output = _read_content(item.take("output"), item.name("output"))
            call_id = item.text("call_id") or ""
            chat.messages.add(role="tool", content=output, tool_call_id=call_id)
        else:
            raise invalid(item.name("type"), f"is {kind[:40]!r}, which is not served")
        item.refuse_rest()


def _read_message(item: JsonFields, chat: pb.ChatMessages) -> pb.ChatMessage:
    role = item.text("role")
    if role is None:
        raise invalid(item.name("role"), "is missing")
    content = _read_content(item.take("content"), item.name("content"))
    told_as = "system" if role == "developer" else role
    message: pb.ChatMessage = chat.messages.add(role=told_as, content=content)
    return message


def _assistant(chat: pb.ChatMessages) -> pb.ChatMessage:
    """The assistant's turn that a call belongs to."""
    is_last = bool(chat.messages) and chat.messages[-1].role == "assistant"
    turn: pb.ChatMessage = chat.messages[-1] if is_last else chat.messages.add(role="assistant")
    return turn


def _read_thought(item: JsonFields) -> str:
    item.take("summary")
    item.refuse("encrypted_content", "cannot be read here")
    return "".join(
        JsonFields(part, item.name("content")).text("text") or ""
        for part in item.objects("content")
    )


def _read_content(content: object, field: str) -> str:
    """A text, whole or in parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise invalid(field, "must be a string or a list of parts")
    texts = []
    for index, entry in enumerate(content):
        part = JsonFields(entry, f"{field}[{index}]")
        kind = part.text("type") or ""
        if kind not in _TEXT_PARTS:
            raise invalid(part.name("type"), f"is {kind[:40]!r}; this server reads text alone")
        texts.append(part.text(_TEXT_PARTS[kind]) or "")
        for told in ("annotations", "logprobs"):
            part.take(told)
        part.refuse_rest()
    return "".join(texts)


def _read_reasoning(fields: JsonFields, chat: pb.ChatMessages) -> None:
    given = fields.take("reasoning")
    if given is None:
        return
    reasoning = JsonFields(given, "reasoning")
    if reasoning.text("effort") is not None:
        raise invalid(
            "reasoning.effort",
            "is not served; give what the model's template reads as `chat_template_kwargs`",
        )
    for name in ("summary", "generate_summary"):
        reasoning.refuse(name, "is not served: reasoning is told as it is")
    reasoning.refuse_rest()


def _read_text_format(fields: JsonFields, sampling: pb.SamplingParameters) -> dict[str, Any]:
    given = fields.take("text")
    if given is None:
        return {"format": {"type": "text"}}
    text = JsonFields(given, "text")
    text.refuse("verbosity", "is not served")
    form = text.take("format")
    text.refuse_rest()
    if form is None:
        return {"format": {"type": "text"}}
    read_structure_format(JsonFields(form, "text.format"), sampling)
    return {"format": form}


def _read_top_logprobs(fields: JsonFields) -> None:
    if fields.whole("top_logprobs"):
        raise invalid("top_logprobs", "is not served here; chat completions tell them")


def _refuse_not_served(fields: JsonFields) -> None:
    fields.refuse(
        "previous_response_id",
        "is given, but no response is stored here; send the whole conversation as `input`",
    )
    fields.refuse("conversation", "is given, but none is stored here; send all of it as `input`")
    fields.refuse("prompt", "is given, but no prompt is stored here")
    for name in ("store", "background"):
        if fields.flag(name):
            raise invalid(name, "is true, but nothing is stored here")
    if (truncation := fields.text("truncation")) not in (None, "disabled"):
        raise invalid("truncation", f"is {truncation!r}; nothing is left out of an input here")
    if fields.texts("include"):
        raise invalid("include", "is not served; leave it out")
    if fields.take("max_tool_calls") is not None:
        raise invalid("max_tool_calls", "is not served; there is `parallel_tool_calls`")
    if (tier := fields.text("service_tier")) not in (None, "auto", "default"):
        raise invalid("service_tier", f"is {tier!r}; there is only the default one")
    options = fields.take("stream_options")
    if options is not None:
        reader = JsonFields(options, "stream_options")
        reader.take("include_obfuscation")
        reader.refuse_rest()
