"""`response_format` and `structured_outputs`: what form an answer is wanted in."""

import msgspec

from blockyard.cluster.http.json_fields import JsonFields
from blockyard.cluster.request.limits import invalid
from blockyard.protos import generation_pb2 as pb

__all__ = ["read_structure", "read_structure_format"]


def read_structure(fields: JsonFields, sampling: pb.SamplingParameters) -> None:
    """Move the form that is asked for to `sampling`.

    Raises:
        ApiError: INVALID_ARGUMENT naming the field.
    """
    response_format = fields.take("response_format")
    if response_format is not None:
        _read_response_format(JsonFields(response_format, "response_format"), sampling)
    forms = fields.take("structured_outputs")
    if forms is None:
        return
    if sampling.HasField("structure"):
        raise invalid("structured_outputs", "is given beside response_format; give one of them")
    reader = JsonFields(forms, "structured_outputs")
    structure = sampling.structure
    given = 0
    if (schema := reader.take("json")) is not None:
        structure.json_schema = schema if isinstance(schema, str) else _written(schema)
        given += 1
    if reader.flag("json_object"):
        structure.json_object = True
        given += 1
    if (regex := reader.text("regex")) is not None:
        structure.regex = regex
        given += 1
    if (grammar := reader.text("grammar")) is not None:
        structure.grammar = grammar
        given += 1
    if texts := reader.texts("choice"):
        structure.choice.texts.extend(texts)
        given += 1
    reader.refuse_rest()
    if given != 1:
        raise invalid("structured_outputs", f"has {given} forms; give one")


def _read_response_format(reader: JsonFields, sampling: pb.SamplingParameters) -> None:
    kind = reader.text("type")
    if kind == "json_object":
        sampling.structure.json_object = True
    elif kind == "json_schema":
        wrapper = reader.take("json_schema")
        if wrapper is None:
            raise invalid("response_format.json_schema", "is missing")
        described = JsonFields(wrapper, "response_format.json_schema")
        schema = described.take("schema")
        for name in ("name", "description", "strict"):
            described.take(name)  # every schema is kept to strictly
        described.refuse_rest()
        sampling.structure.json_schema = _written({} if schema is None else schema)
    elif kind != "text":
        raise invalid(
            "response_format.type", f"is {kind!r}; give `text`, `json_object` or `json_schema`"
        )
    reader.refuse_rest()


def read_structure_format(reader: JsonFields, sampling: pb.SamplingParameters) -> None:
    """Move the `text.format` of a response to `sampling`: its schema is not wrapped once more."""
    kind = reader.text("type")
    if kind == "json_object":
        sampling.structure.json_object = True
    elif kind == "json_schema":
        schema = reader.take("schema")
        for name in ("name", "description", "strict"):
            reader.take(name)  # every schema is kept to strictly
        sampling.structure.json_schema = _written({} if schema is None else schema)
    elif kind != "text":
        raise invalid(
            reader.name("type"), f"is {kind!r}; give `text`, `json_object` or `json_schema`"
        )
    reader.refuse_rest()


def _written(schema: object) -> str:
    return msgspec.json.encode(schema).decode()
