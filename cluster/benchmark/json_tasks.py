"""Thirty JSON schemas and what to ask for each: the load of structured answers.

Every schema bounds what it describes, so that an answer that keeps to it ends. Knows no server.
Units: tokens.
"""

import json
from typing import Any

__all__ = ["JSON_SCHEMAS", "MOST_ANSWER_TOKENS", "json_task"]

MOST_ANSWER_TOKENS = 400
"""More than any answer that keeps to one of the schemas has with a usual tokenizer."""

_WORD = {"type": "string", "maxLength": 12}
_LINE = {"type": "string", "maxLength": 40}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 999}
_FLAG = {"type": "boolean"}


def _record(**properties: Any) -> dict[str, Any]:
    """An object that has all of these properties and no other."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _some(items: Any, least: int, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _one_of(*values: Any) -> dict[str, Any]:
    return {"enum": list(values)}


_ADDRESS = _record(street=_LINE, city=_WORD, postcode={"type": "string", "pattern": "^[0-9]{5}$"})

_TASKS: dict[str, dict[str, Any]] = {
    "a person": _record(name=_WORD, age=_COUNT, married=_FLAG),
    "a book": _record(title=_LINE, author=_LINE, pages=_COUNT, genre=_one_of("novel", "science")),
    "a city": _record(name=_WORD, country=_WORD, population={"type": "integer", "minimum": 0,
                                                             "maximum": 99999999}),
    "a recipe": _record(name=_LINE, minutes=_COUNT, ingredients=_some(_WORD, 2, 5)),
    "the weather": _record(sky=_one_of("clear", "cloudy", "rain", "snow"), celsius={
        "type": "integer", "minimum": -40, "maximum": 50}),
    "an order": _record(customer=_WORD, items=_some(_record(sku=_WORD, amount=_COUNT), 1, 3)),
    "a film": _record(title=_LINE, year={"type": "integer", "minimum": 1900, "maximum": 2030},
                      rating=_one_of(1, 2, 3, 4, 5)),
    "a mood": _one_of("positive", "negative", "neutral"),
    "yes or no": _FLAG,
    "three numbers": _some(_COUNT, 3, 3),
    "a list of colours": _some(_one_of("red", "green", "blue", "black", "white"), 1, 4),
    "a person or nothing": {"anyOf": [{"type": "null"}, _record(name=_WORD)]},
    "a number or a word": {"anyOf": [_COUNT, _WORD]},
    "a company": _record(name=_WORD, address=_ADDRESS, employees=_COUNT),
    "a flight": _record(number={"type": "string", "pattern": "^[A-Z]{2}[0-9]{3,4}$"},
                        origin=_WORD, destination=_WORD, gate=_one_of("A", "B", "C")),
    "a date": _record(day={"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}),
    "a colour": _record(hex={"type": "string", "pattern": "^#[0-9a-f]{6}$"}, name=_WORD),
    "a matrix": _some(_some({"type": "integer", "minimum": 0, "maximum": 9}, 3, 3), 3, 3),
    "a point": _record(x={"type": "integer", "minimum": -99, "maximum": 99},
                       y={"type": "integer", "minimum": -99, "maximum": 99}),
    "a tool call": _record(tool={"const": "search"}, arguments=_record(query=_LINE, limit=_COUNT)),
    "a review": _record(stars=_one_of(1, 2, 3, 4, 5), summary=_LINE, recommended=_FLAG),
    "a ticket": _record(priority=_one_of("low", "medium", "high"), title=_LINE,
                        labels=_some(_WORD, 0, 3)),
    "a pair of teams": _record(home=_WORD, away=_WORD, score=_some(_COUNT, 2, 2)),
    "a family": _record(parents=_some(_WORD, 1, 2), children=_some(
        _record(name=_WORD, age=_COUNT), 0, 2)),
    "a car": _record(maker=_WORD, doors=_one_of(2, 4, 5), electric=_FLAG, price=_COUNT),
    "a shape": {"anyOf": [_record(kind={"const": "circle"}, radius=_COUNT),
                          _record(kind={"const": "square"}, side=_COUNT)]},
    "a song": _record(title=_LINE, artist=_WORD, seconds=_COUNT, live=_FLAG),
    "a sensor": _record(id={"type": "string", "pattern": "^[a-f0-9]{8}$"}, values=_some(
        _COUNT, 2, 4), unit=_one_of("C", "K", "Pa", None)),
    "a nested thing": _record(a=_record(b=_record(c=_some(_record(d=_FLAG), 1, 2)))),
    "a plan of a day": _some(_record(hour={"type": "integer", "minimum": 0, "maximum": 23},
                                     what=_LINE), 1, 3),
}  # fmt: skip

JSON_SCHEMAS: tuple[str, ...] = tuple(json.dumps(schema) for schema in _TASKS.values())
"""Each as JSON text."""


def json_task(number: int) -> tuple[str, str]:
    """Prompt and schema number `number`; prompts differ from their first words on."""
    at = number % len(_TASKS)
    subject = tuple(_TASKS)[at]
    return f"Task {number}: describe {subject}, made up by you, as JSON.", JSON_SCHEMAS[at]
