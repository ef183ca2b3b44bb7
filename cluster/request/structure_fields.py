"""From the form that a client wants its answer in to a grammar, or a refusal that says why not.

Grammars are checked here, so that an engine gets none that it cannot use. llguidance reads them:
the same library keeps to them in the worker. Units: bytes.
"""

import asyncio
import re
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from blockyard.cluster.request.limits import check_known_fields, invalid
from blockyard.protos import generation_pb2 as pb

__all__ = ["JSON_STYLE", "MAX_STRUCTURE_BYTES", "resolve_structure"]

MAX_STRUCTURE_BYTES = 65_536
_MOST_ALTERNATIVES = 1024
_MOST_ERROR_CHARACTERS = 500
_FIELD = "sampling.structure"

JSON_STYLE: Any = {"whitespace_pattern": r"[ ]?|\n[ ]{0,40}"}
"""On one line or indented, as people write it, and no more: a model could add blanks for ever."""


async def resolve_structure(sampling: pb.SamplingParameters) -> str:
    """The grammar of what is asked for; empty when any text will do.

    Raises:
        ApiError: INVALID_ARGUMENT naming the field.
    """
    if not sampling.HasField("structure"):
        return ""
    structure = sampling.structure
    check_known_fields(_FIELD, structure)
    if structure.ByteSize() > MAX_STRUCTURE_BYTES:
        raise invalid(
            _FIELD,
            f"has {structure.ByteSize():,} bytes; at most {MAX_STRUCTURE_BYTES:,} are taken",
        )
    for name in ("ignore_eos", "min_tokens"):
        if getattr(sampling, name):
            raise invalid(f"sampling.{name}", "does not go with a structure: that says when to end")
    kind = structure.WhichOneof("form")
    if kind is None or (kind == "json_object" and not structure.json_object):
        return ""
    field = f"{_FIELD}.{kind}"
    try:
        # A large schema takes its time, and the library lets other threads run meanwhile.
        return await asyncio.to_thread(_grammar, structure, kind)
    except ValueError as error:
        raise invalid(field, f"cannot be used: {str(error)[:_MOST_ERROR_CHARACTERS]}") from None


def _grammar(structure: pb.Structure, kind: str) -> str:
    """The grammar, proved to be one. Raises `ValueError`."""
    if kind == "json_schema":
        grammar = LLMatcher.grammar_from_json_schema(structure.json_schema, JSON_STYLE)
    elif kind == "json_object":
        grammar = LLMatcher.grammar_from_json_schema('{"type": "object"}', JSON_STYLE)
    elif kind == "regex":
        grammar = LLMatcher.grammar_from_regex(structure.regex)
    elif kind == "grammar":
        text = structure.grammar
        grammar = LLMatcher.grammar_from_lark(gbnf_to_lark(text) if "::=" in text else text)
    else:
        grammar = LLMatcher.grammar_from_regex(_alternatives(structure.choice.texts))
    problem = LLMatcher.validate_grammar(grammar)
    if problem and not problem.startswith("WARNING"):
        raise ValueError(problem)
    return str(grammar)


def _alternatives(texts: list[str]) -> str:
    if not 1 <= len(texts) <= _MOST_ALTERNATIVES:
        raise ValueError(f"has {len(texts)} texts; give 1 to {_MOST_ALTERNATIVES}")
    if not all(texts):
        raise ValueError("one of the texts is empty")
    return "|".join(re.escape(text) for text in texts)
