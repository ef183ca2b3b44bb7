"""Grammars of answers that call functions, and of those that think before they speak.

Written in Lark's notation for llguidance, which keeps answers to them. A mark that is a token of
its own stands there by its id: llguidance takes most of those for control tokens, which no text
spells, and a model that has them does not spell them out. Units: bytes.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from llguidance import LLMatcher

from blockyard.cluster.request.chat_fields import ChatTools
from blockyard.cluster.request.speech import SpeechPlan
from blockyard.cluster.request.speech_format import ToolFormat
from blockyard.cluster.request.structure_fields import JSON_STYLE

__all__ = ["answer_grammar"]

_ANSWER = "answer"


def answer_grammar(
    form: str,
    tools: ChatTools | None,
    speech: SpeechPlan,
    added_token: Callable[[str], int | None],
) -> str:
    """The grammar of a whole answer; empty when any text will do.

    Args:
        form: grammar that what is said to the client keeps to; empty for any text.
        tools: functions; their grammar counts when a call is forced, and beside a form.
        speech: whether the model thinks, and whether it has begun to.
        added_token: the id of a mark that is one added token.

    Raises:
        ValueError: a schema cannot be used; the message says why.
    """
    forced = tools is not None and bool(tools.forced)
    if not form and not forced:
        return ""
    if not forced and tools is None and speech.reasoning is None:
        return form
    write = _Marks(added_token)
    rules: list[str] = []
    answers = [] if forced else [f"@{_ANSWER}"]
    if tools is not None:
        answers.append("calls")
        rules += _call_rules(tools, write)
    rules += _thinking_rules(speech, write)
    begin = {None: "", False: "thinking? ", True: "thought "}[
        None if speech.reasoning is None else speech.begun
    ]
    lark = "\n".join([f"start: {begin}({' | '.join(answers)})", *rules, ""])
    composed = [{"lark_grammar": lark}, *([] if forced else [_named(form)])]
    grammar = json.dumps({"grammars": composed})
    problem = LLMatcher.validate_grammar(grammar)
    if problem and not problem.startswith("WARNING"):
        raise ValueError(problem)
    return grammar


class _Marks:
    """Writes marks as terms of a grammar."""

    def __init__(self, added_token: Callable[[str], int | None]) -> None:
        self._added_token = added_token

    def __call__(self, mark: str) -> str:
        token = self._added_token(mark)
        return _quoted(mark) if token is None else f"<[{token}]>"

    def is_token(self, mark: str) -> bool:
        return self._added_token(mark) is not None


def _call_rules(tools: ChatTools, write: _Marks) -> list[str]:
    names = tools.forced or tuple(tools.schemas)
    call = " | ".join(f"call_{index}" for index in range(len(names)))
    begin, between, end = _frame(tools.format, write)
    more = "" if tools.most_calls == 1 else f" ({between}call)*"
    rules = [f"calls: {begin}call{more}{end}", f"call: {call}"]
    key = "parameters" if tools.format is ToolFormat.LLAMA3 else "arguments"
    compact = tools.format is ToolFormat.MISTRAL and write.is_token("[ARGS]")
    for index, name in enumerate(names):
        head, tail = f'{{"name": {json.dumps(name)}, "{key}": ', "}"
        body = f"{_quoted(head)} arguments_{index} {_quoted(tail)}"
        if tools.format is ToolFormat.HERMES:
            opener, closer = write("<tool_call>"), write("</tool_call>")
            body = f'{opener} "\\n" {body} "\\n" {closer}'
        elif compact:
            body = f"{write('[TOOL_CALLS]')} {_quoted(name)} {write('[ARGS]')} arguments_{index}"
        rules.append(f"call_{index}: {body}")
        rules.append(f"arguments_{index}: %json {_schema(tools.schemas[name])}")
    return rules


def _frame(tool_format: ToolFormat, write: _Marks) -> tuple[str, str, str]:
    """What stands before all calls, between two and behind all."""
    if tool_format is ToolFormat.HERMES:
        return "", '"\\n" ', ""
    if tool_format is ToolFormat.LLAMA3:
        return "", '"; " ', ""
    if write.is_token("[ARGS]"):
        return "", "", ""
    return f'{write("[TOOL_CALLS]")} /[ ]?/ "[" ', '", " ', ' "]"'


def _thinking_rules(speech: SpeechPlan, write: _Marks) -> list[str]:
    tags = speech.reasoning
    if tags is None:
        return []
    blanks = r"/\n{0,2}/"
    if write.is_token(tags.end):
        thought = ["thought: anything " + write(tags.end) + f" {blanks}", r"anything: /(.|\n)*/"]
    else:
        thought = [
            f"thought: anything {blanks}",
            f"anything[suffix={_quoted(tags.end)}]: /(.|\\n)*/",
        ]
    return [f"thinking: {write(tags.begin)} thought", *thought]


def _schema(schema: Mapping[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": JSON_STYLE})


def _named(form: str) -> dict[str, Any]:
    """The client's form as one that a grammar can refer to."""
    if not form.startswith("{"):
        return {"name": _ANSWER, "lark_grammar": form}
    (only,) = json.loads(form)["grammars"]
    return {**only, "name": _ANSWER}


def _quoted(text: str) -> str:
    return json.dumps(text)
