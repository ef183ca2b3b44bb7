"""Tools, the choice of them and calls in the history, from OpenAI's JSON to the request message.

Both forms are read: that of chat completions, with `function` inside, and the flat one of
responses.
"""

from typing import Any

import msgspec

from blockyard.cluster.http.json_fields import JsonFields
from blockyard.cluster.request.limits import invalid
from blockyard.protos import generation_pb2 as pb

__all__ = ["read_calls", "read_tools"]

_CHOICES = {
    "auto": pb.TOOL_CHOICE_AUTO,
    "none": pb.TOOL_CHOICE_NONE,
    "required": pb.TOOL_CHOICE_REQUIRED,
}


def read_tools(fields: JsonFields, chat: pb.ChatMessages) -> None:
    """Move `tools`, `tool_choice`, `parallel_tool_calls` and template variables to the chat.

    Raises:
        ApiError: INVALID_ARGUMENT naming the field.
    """
    for index, entry in enumerate(fields.objects("tools")):
        _read_tool(JsonFields(entry, f"tools[{index}]"), chat.tools.add())
    choice = fields.take("tool_choice")
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise invalid("tool_choice", f"is {choice[:40]!r}; give {', '.join(_CHOICES)}")
        chat.tool_choice = _CHOICES[choice]
    elif choice is not None:
        chat.tool_choice = pb.TOOL_CHOICE_NAMED
        chat.tool_name = _read_named(JsonFields(choice, "tool_choice"))
    if (parallel := fields.flag("parallel_tool_calls")) is not None:
        chat.parallel_tool_calls = parallel
    _read_variables(fields, chat)


def read_calls(message: JsonFields, told: pb.ChatMessage) -> None:
    """Move an assistant's `tool_calls` to its message."""
    for index, entry in enumerate(message.objects("tool_calls")):
        call = JsonFields(entry, message.name(f"tool_calls[{index}]"))
        if (kind := call.text("type")) not in (None, "function"):
            raise invalid(call.name("type"), f"is {kind!r}; only functions are called here")
        call.take("index")
        function = JsonFields(call.take("function"), call.name("function"))
        told.tool_calls.add(
            index=index,
            id=call.text("id") or "",
            name=function.text("name") or "",
            arguments=function.text("arguments") or "",
        )
        function.refuse_rest()
        call.refuse_rest()


def _read_tool(entry: JsonFields, tool: pb.Tool) -> None:
    if (kind := entry.text("type")) != "function":
        raise invalid(entry.name("type"), f"is {kind!r}; only `function` is served")
    inner = entry.take("function")
    described = entry if inner is None else JsonFields(inner, entry.name("function"))
    tool.name = described.text("name") or ""
    tool.description = described.text("description") or ""
    parameters = described.take("parameters")
    if parameters is not None:
        tool.parameters = _written(parameters)
    described.flag("strict")  # a forced call is kept to its schema in any case
    described.refuse_rest()
    entry.refuse_rest()


def _read_named(choice: JsonFields) -> str:
    if (kind := choice.text("type")) != "function":
        raise invalid("tool_choice.type", f"is {kind!r}; only `function` is served")
    inner = choice.take("function")
    named = choice if inner is None else JsonFields(inner, "tool_choice.function")
    name = named.text("name")
    if not name:
        raise invalid(named.name("name"), "is missing")
    named.refuse_rest()
    choice.refuse_rest()
    return name


def _read_variables(fields: JsonFields, chat: pb.ChatMessages) -> None:
    variables: dict[str, Any] = {}
    if (effort := fields.text("reasoning_effort")) is not None:
        variables["reasoning_effort"] = effort
    given = fields.take("chat_template_kwargs")
    if given is not None:
        JsonFields(given, "chat_template_kwargs")  # an object
        variables.update(given)
    if variables:
        chat.template_variables = _written(variables)


def _written(value: object) -> str:
    return msgspec.json.encode(value).decode()
