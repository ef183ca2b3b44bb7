"""Tells a model of tools in plain messages, where its chat template knows none.

Calls and what they gave become text of their messages. Such a model was perhaps never trained on
calls: `required` and named functions hold it to their form by a grammar. Knows no tokens.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from blockyard.cluster.request.speech_format import ToolFormat

__all__ = ["without_tools"]

_EXAMPLES = {
    ToolFormat.HERMES: (
        '<tool_call>\n{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}\n</tool_call>'
    ),
    ToolFormat.LLAMA3: '{"name": "NAME", "parameters": {"ARGUMENT": "VALUE"}}',
    ToolFormat.MISTRAL: '[TOOL_CALLS] [{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}]',
}


def without_tools(
    messages: Sequence[Mapping[str, Any]],
    described: Sequence[Mapping[str, Any]],
    tool_format: ToolFormat,
) -> list[dict[str, Any]]:
    """The same conversation in messages that have a role and content alone.

    Args:
        messages, described: see `ChatTemplate.render`.
        tool_format: how the model is to write calls.
    """
    plain = [_plain(message, tool_format) for message in messages]
    if not described:
        return plain
    told = _tell(described, tool_format)
    if plain[0]["role"] == "system":
        plain[0]["content"] = f"{plain[0]['content']}\n\n{told}"
    else:
        plain.insert(0, {"role": "system", "content": told})
    return plain


def _tell(described: Sequence[Mapping[str, Any]], tool_format: ToolFormat) -> str:
    functions = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in described)
    return (
        "You can call these functions, described in JSON:\n"
        f"{functions}\n\n"
        "To call one, answer in this form and with nothing else:\n"
        f"{_EXAMPLES[tool_format]}"
    )


def _plain(message: Mapping[str, Any], tool_format: ToolFormat) -> dict[str, Any]:
    if message["role"] == "tool":
        return {
            "role": "user",
            "content": f"<tool_response>\n{message['content']}\n</tool_response>",
        }
    calls = [_written(call["function"], tool_format) for call in message.get("tool_calls", ())]
    content = "\n".join(filter(None, [message["content"], *calls]))
    return {"role": message["role"], "content": content}


def _written(function: Mapping[str, Any], tool_format: ToolFormat) -> str:
    key = "parameters" if tool_format is ToolFormat.LLAMA3 else "arguments"
    call = json.dumps({"name": function["name"], key: function["arguments"]}, ensure_ascii=False)
    if tool_format is ToolFormat.HERMES:
        return f"<tool_call>\n{call}\n</tool_call>"
    return f"[TOOL_CALLS] [{call}]" if tool_format is ToolFormat.MISTRAL else call
