"""How a model marks calls of functions and reasoning in what it says, told from its chat template.

Knows the marks and no text. See `call_reader` and `reasoning_reader` for who reads them.
"""

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "REASONING_FORMATS",
    "TOOL_FORMATS",
    "SpeechFormat",
    "ThinkTags",
    "ToolFormat",
    "speech_format",
]


class ToolFormat(StrEnum):
    """How calls are written."""

    HERMES = "hermes"
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`, as Hermes and Qwen do."""

    LLAMA3 = "llama3"
    """The answer is `{"name": ..., "parameters": ...}`, several apart by `;`."""

    MISTRAL = "mistral"
    """`[TOOL_CALLS]` and a list of objects, or each call's name and arguments."""

    @property
    def opener(self) -> str:
        """What calls begin with; a call of Llama 3 may do without."""
        return {"hermes": "<tool_call>", "llama3": "<|python_tag|>", "mistral": "[TOOL_CALLS]"}[
            self.value
        ]

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that have a meaning in it, which may be control tokens of the model."""
        return {
            "hermes": ("<tool_call>", "</tool_call>"),
            "llama3": ("<|python_tag|>",),
            "mistral": ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
        }[self.value]

    def call_id(self) -> str:
        """A fresh id of a call."""
        if self is ToolFormat.MISTRAL:  # whose template takes no other
            return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """What reasoning stands between."""

    begin: str
    end: str


_TAGS = {
    "think": ThinkTags("<think>", "</think>"),
    "mistral": ThinkTags("[THINK]", "[/THINK]"),
}
TOOL_FORMATS = ("auto", *ToolFormat, "none")
REASONING_FORMATS = ("auto", *_TAGS, "none")


@dataclass(frozen=True, slots=True)
class SpeechFormat:
    """What is known of one model.

    Attributes:
        tools: how calls are written; None where nobody knows.
        reasoning: what reasoning stands between; None where the model marks none.
        tells_tools: whether the chat template lays out tools by itself.
    """

    tools: ToolFormat | None = None
    reasoning: ThinkTags | None = None
    tells_tools: bool = False


def speech_format(
    template: str,
    uses: Callable[[str], bool],
    tool_format: str = "auto",
    reasoning_format: str = "auto",
) -> SpeechFormat:
    """The format of the model with this template; `uses` says which variables it reads.

    Raises:
        ValueError: a format is not known.
    """
    for name, given, known in (
        ("tool_format", tool_format, TOOL_FORMATS),
        ("reasoning_format", reasoning_format, REASONING_FORMATS),
    ):
        if given not in known:
            raise ValueError(f"{name} is {given!r}; known are {', '.join(known)}")
    tells_tools = uses("tools")
    tools = _tool_format(template, tells_tools) if tool_format == "auto" else None
    if tool_format not in ("auto", "none"):
        tools = ToolFormat(tool_format)
    if reasoning_format == "auto":
        reasoning = next((tags for tags in _TAGS.values() if tags.end in template), None)
    else:
        reasoning = _TAGS.get(reasoning_format)
    return SpeechFormat(tools, reasoning, tells_tools)


def _tool_format(template: str, tells_tools: bool) -> ToolFormat | None:
    if not tells_tools:
        # Its makers say nothing of tools, so a system message of ours does, and asks for these.
        return ToolFormat.HERMES
    if "<function=" in template:
        return None  # calls in XML, though within the tags that Hermes has
    if ToolFormat.HERMES.opener in template:
        return ToolFormat.HERMES
    if ToolFormat.MISTRAL.opener in template:
        return ToolFormat.MISTRAL
    if "<|start_header_id|>" in template or "<|python_tag|>" in template:
        return ToolFormat.LLAMA3
    return None
