"""O29: structured answers, preempted, batched, forked and sampled at random; all fit their form."""

import asyncio
import json
import re
from typing import Any

import jsonschema
import pytest

from blockyard.protos import generation_pb2 as pb

PROMPT = [(31 * n + 5) % 256 for n in range(20)]
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "size": {"enum": ["small", "large"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 99},
            "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        },
        "required": ["size", "count", "tags"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": [1, 2, None]}, "minItems": 2, "maxItems": 4},
    {"type": "string", "maxLength": 5},
    {"anyOf": [{"type": "boolean"}, {"const": {"a": [1]}}]},
]


def asked(number: int, schema: dict[str, Any], **fields: Any) -> pb.GenerateRequest:
    structure = pb.Structure(json_schema=json.dumps(schema))
    sampling = pb.SamplingParameters(max_tokens=180, seed=number, structure=structure, **fields)
    return pb.GenerateRequest(tokens=pb.TokenIds(ids=[number, *PROMPT]), sampling=sampling)


def _check(answer: pb.GenerateResponse, schema: dict[str, Any]) -> None:
    for choice in answer.choices:
        assert choice.finish_reason == pb.FINISH_REASON_STOP, choice.text
        jsonschema.validate(json.loads(choice.text), schema)


async def test_o29_preempted_in_the_middle_and_the_same_as_alone(make_rig: Any) -> None:
    """A pool of a few requests' blocks, with twenty that want them."""
    requests = [asked(n, SCHEMAS[n % 4], temperature=(0.0, 1.5)[n % 2]) for n in range(20)]
    roomy = await make_rig(blocks=256)
    alone = [await roomy.client.generate(request) for request in requests]
    tight = await make_rig(blocks=16)
    together = await asyncio.gather(*(tight.client.generate(request) for request in requests))
    assert tight.dispatcher.engine.ledger().preemptions > 0
    for number, (one, other) in enumerate(zip(alone, together, strict=True)):
        _check(other, SCHEMAS[number % 4])
        assert one.token_ids == other.token_ids


async def test_o29_forks_each_go_their_own_way(rig: Any) -> None:
    answer = await rig.client.generate(asked(3, SCHEMAS[0], n=4, temperature=2.0))
    _check(answer, SCHEMAS[0])
    assert len({choice.text for choice in answer.choices}) > 1


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": "[ab]{3}-[0-9]{2}"}, "[ab]{3}-[0-9]{2}"),
        ({"choice": ["yes", "no (really)", "perhaps"]}, r"yes|no \(really\)|perhaps"),
        ({"grammar": 'start: "x" item+ \nitem: "1" | "2" "3"\n'}, "x(1|23)*"),
        ({"grammar": 'root ::= "a" ("b" | "c") "d"'}, "a[bc]d"),
        ({"json": {"const": "only"}}, '"only"'),
    ],
)
async def test_other_forms_over_http(rig: Any, form: dict[str, Any], pattern: str) -> None:
    for stream in (False, True):
        told = await rig.ask(
            "http-stream" if stream else "http-whole",
            PROMPT,
            structured_outputs=form,
            max_tokens=40,
            seed=1,
            temperature=1.5,
        )
        assert re.fullmatch(pattern, told.texts[0]), told.texts


async def test_response_format_over_chat(rig: Any) -> None:
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "thing", "strict": True, "schema": SCHEMAS[0]},
        },
        "max_tokens": 120,
    }
    answer = (await rig.web.post("/v1/chat/completions", json=body)).json()
    jsonschema.validate(json.loads(answer["choices"][0]["message"]["content"]), SCHEMAS[0])


async def test_o29_a_dead_end_is_that_requests_own(rig: Any) -> None:
    """The grammar wants what the bias forbids."""
    (letter,) = rig.tokenizer.encode_text("a")
    good = asyncio.create_task(rig.client.generate(asked(1, SCHEMAS[0])))
    body = {"prompt": "x", "structured_outputs": {"choice": ["a"]}, "bad_words": ["a"]}
    answer = await rig.web.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert "no token is left" in answer.json()["error"]["message"]
    assert letter < 256
    _check(await good, SCHEMAS[0])
