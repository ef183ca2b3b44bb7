"""Renders a model's own chat template, as Hugging Face files carry it, inside a sandbox.

The template is the model author's text and the messages are a stranger's: it can reach nothing but
the values given to it. Knows no tokenizer. Units: text.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["ChatTemplate", "ChatTemplateError", "read_chat_template"]


_GIVEN = ("messages", "add_generation_prompt", "tools", "documents")


class ChatTemplateError(Exception):
    """The template refused the messages, or is itself at fault; the message is for the client."""


class _Refusal(TemplateError):
    """Raised by the template itself, through `raise_exception`."""


class _GenerationBlock(Extension):
    """`{% generation %}` marks an assistant's text for training; when serving it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (the base class says: a plain set)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Put the block's body in the block's place."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template with the model's special tokens."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` are variables of the template, such as `bos_token`.

        Raises:
            ChatTemplateError: the source is not a template.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
            self._variables = frozenset(meta.find_undeclared_variables(environment.parse(source)))
        except TemplateError as error:
            raise ChatTemplateError(f"the chat template cannot be read: {error}") from error
        self._special_tokens = dict(special_tokens)
        self.source = source

    def uses(self, variable: str) -> bool:
        """Whether the template reads a variable that it does not set."""
        return variable in self._variables

    @property
    def free_variables(self) -> frozenset[str]:
        """Variables that a caller may set: those it reads, but for what is always given."""
        given = {*_GIVEN, *self._special_tokens, "raise_exception", "strftime_now"}
        return self._variables - given

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as one text that ends where the assistant is to speak.

        Args:
            messages: each with `role`, `content` and whatever else the template reads.
            tools: functions that may be called, as OpenAI's API describes them.
            variables: some of `free_variables`.

        Raises:
            ChatTemplateError: the template refuses these messages or fails on them.
        """
        try:
            return self._template.render(
                **(variables or {}),
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                tools=list(tools) if tools else None,
                documents=None,
                **self._special_tokens,
            )
        except _Refusal as error:
            raise ChatTemplateError(
                f"the model's chat template refuses these messages: {error}"
            ) from error
        except Exception as error:
            # Whatever a template trips over depends on the messages, so it is the caller's.
            raise ChatTemplateError(
                f"the model's chat template cannot lay out these messages ({type(error).__name__})"
            ) from error


def read_chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The template's source: `chat_template.jinja`, else from the tokenizer's configuration."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    value = tokenizer_config.get("chat_template")
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _raise_exception(message: str) -> None:
    raise _Refusal(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which a model was never trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
