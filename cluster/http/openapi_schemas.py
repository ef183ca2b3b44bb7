"""JSON schemas of what the HTTP routes take: every field that is read, with its range.

What these say is what is taken; a test sends each field, and unknown ones, to hold them to that.
"""

from typing import Any

from blockyard.cluster.request.limits import MAX_CHOICES, MAX_STOP_CHARACTERS, MAX_STOPS

__all__ = ["SCHEMAS"]

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_ANYTHING: Schema = {}
_OBJECT: Schema = {"type": "object"}
_NAME: Schema = {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"}


def _number(least: float, most: float) -> Schema:
    return {"type": "number", "minimum": least, "maximum": most}


def _whole(least: int, most: int = 2**31 - 1) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def _list(items: Schema, most: int | None = None, least: int = 0) -> Schema:
    limits = {} if most is None else {"maxItems": most}
    return {"type": "array", "items": items, "minItems": least, **limits}


def _closed(properties: dict[str, Schema], *required: str) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_STOP_TEXT: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
_TOKEN: Schema = _whole(0)
_PART = _closed({"type": {"enum": ["text"]}, "text": _TEXT}, "type", "text")
_SCHEMA_FORM = {"name": _TEXT, "description": _TEXT, "strict": _FLAG, "schema": _OBJECT}

_INFORMATION: dict[str, Schema] = {
    "user": _TEXT,
    "metadata": _OBJECT,
    "safety_identifier": _TEXT,
    "prompt_cache_key": _TEXT,
    "prompt_cache_retention": _TEXT,
}

_COMMON: dict[str, Schema] = {
    "model": _TEXT,
    "request_id": _NAME,
    "stream": _FLAG,
    "stream_options": _closed({"include_usage": _FLAG, "include_obfuscation": _FLAG}),
    "resume_seconds": {**_number(0, 300), "exclusiveMinimum": 0},
}

_SAMPLING: dict[str, Schema] = {
    "temperature": _number(0, 100),
    "top_p": {**_number(0, 1), "exclusiveMinimum": 0},
    "min_p": _number(0, 1),
    "typical_p": {**_number(0, 1), "exclusiveMinimum": 0},
    "frequency_penalty": _number(-2, 2),
    "presence_penalty": _number(-2, 2),
    "repetition_penalty": {**_number(0, 10), "exclusiveMinimum": 0},
    "top_k": _whole(-1),
    "seed": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "n": _whole(1, MAX_CHOICES),
    "priority": _whole(-(2**31)),
    "prompt_logprobs": _whole(0, 20),
    "min_tokens": _whole(0),
    "ignore_eos": _FLAG,
    "include_stop_str_in_output": _FLAG,
    "stop": _either(_STOP_TEXT, _list(_STOP_TEXT, MAX_STOPS)),
    "bad_words": _list(_STOP_TEXT, 64),
    "stop_token_ids": _list(_TOKEN, 64),
    "allowed_token_ids": _list(_TOKEN, 4096),
    "logit_bias": {"type": "object", "additionalProperties": _number(-100, 100)},
    "response_format": _either(
        _closed({"type": {"enum": ["text", "json_object"]}}, "type"),
        _closed(
            {"type": {"enum": ["json_schema"]}, "json_schema": _closed(_SCHEMA_FORM)},
            "type",
            "json_schema",
        ),
    ),
    "structured_outputs": _closed(
        {
            "json": _either(_OBJECT, _TEXT),
            "json_object": _FLAG,
            "regex": _TEXT,
            "grammar": _TEXT,
            "choice": _list(_TEXT, 1024, 1),
        }
    ),
    **_INFORMATION,
}

_BEAMS = {"use_beam_search": _FLAG, "length_penalty": _number(-5, 5), "early_stopping": _FLAG}

_FUNCTION: dict[str, Schema] = {
    "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"},
    "description": _TEXT,
    "parameters": _OBJECT,
    "strict": _FLAG,
}

_TOOLS: dict[str, Schema] = {
    "tools": _list(_ref("Tool"), 128),
    "tool_choice": _either(
        {"enum": ["auto", "none", "required"]},
        _closed(
            {"type": {"enum": ["function"]}, "function": _closed({"name": _TEXT}, "name")},
            "type",
            "function",
        ),
    ),
    "parallel_tool_calls": _FLAG,
    "reasoning_effort": _TEXT,
    "chat_template_kwargs": _OBJECT,
}

_SAID: dict[str, Schema] = {
    "content": _either(_TEXT, _list(_PART), {"type": "null"}),
    "name": _TEXT,
    "refusal": _TEXT,
}

_CALL = _closed(
    {
        "id": _TEXT,
        "type": {"enum": ["function"]},
        "function": _closed({"name": _TEXT, "arguments": _TEXT}, "name"),
    },
    "function",
)

_RESPONSE_ITEM = _either(
    _closed(
        {
            "type": {"enum": ["message"]},
            "id": _TEXT,
            "status": _TEXT,
            "role": _TEXT,
            "content": _either(_TEXT, _list(_OBJECT)),
        },
        "role",
        "content",
    ),
    _closed(
        {
            "type": {"enum": ["function_call"]},
            "id": _TEXT,
            "status": _TEXT,
            "call_id": _TEXT,
            "name": _TEXT,
            "arguments": _TEXT,
        },
        "type",
        "name",
    ),
    _closed(
        {
            "type": {"enum": ["function_call_output"]},
            "id": _TEXT,
            "status": _TEXT,
            "call_id": _TEXT,
            "output": _TEXT,
        },
        "type",
        "output",
    ),
)
_ADAPTER = {"model": _TEXT, "lora_name": _TEXT}

SCHEMAS: dict[str, Schema] = {
    "Tool": _either(
        _closed(
            {"type": {"enum": ["function"]}, "function": _closed(_FUNCTION, "name")},
            "type",
            "function",
        ),
        _closed({"type": {"enum": ["function"]}, **_FUNCTION}, "type", "name"),
    ),
    "Message": _either(
        _closed({"role": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,32}$"}, **_SAID}, "role"),
        _closed(
            {
                "role": {"enum": ["assistant"]},
                **_SAID,
                "tool_calls": _list(_CALL),
                "reasoning_content": _TEXT,
            },
            "role",
        ),
        _closed({"role": {"enum": ["tool"]}, **_SAID, "tool_call_id": _TEXT}, "role"),
    ),
    "ChatCompletionRequest": _closed(
        {
            "messages": _list(_ref("Message"), None, 1),
            "max_tokens": _whole(1),
            "max_completion_tokens": _whole(1),
            "logprobs": _FLAG,
            "top_logprobs": _whole(0, 20),
            "include_reasoning": _FLAG,
            "store": {"enum": [False]},
            **_BEAMS,
            "modalities": _list({"enum": ["text"]}, 1),
            "service_tier": {"enum": ["auto", "default"]},
            **_COMMON,
            **_SAMPLING,
            **_TOOLS,
        },
        "messages",
    ),
    "CompletionRequest": _closed(
        {
            "prompt": _either(
                _TEXT, _list(_TOKEN, None, 1), _list(_either(_TEXT, _list(_TOKEN)), None, 1)
            ),
            "max_tokens": _whole(1),
            "logprobs": _whole(0, 20),
            "echo": _FLAG,
            "best_of": _whole(1, MAX_CHOICES),
            **_BEAMS,
            "suffix": {"enum": [""]},
            **_COMMON,
            **_SAMPLING,
        },
        "prompt",
    ),
    "ResponseRequest": _closed(
        {
            "input": _either(_TEXT, _list(_RESPONSE_ITEM, None, 1)),
            "instructions": _TEXT,
            "max_output_tokens": _whole(1),
            "text": _closed(
                {
                    "format": _either(
                        _closed({"type": {"enum": ["text", "json_object"]}}, "type"),
                        _closed({"type": {"enum": ["json_schema"]}, **_SCHEMA_FORM}, "type"),
                    )
                }
            ),
            "reasoning": _closed({}),
            "store": {"enum": [False]},
            "background": {"enum": [False]},
            "truncation": {"enum": ["disabled"]},
            "include": _list(_TEXT, 0),
            "service_tier": {"enum": ["auto", "default"]},
            "top_logprobs": {"enum": [0]},
            **_COMMON,
            "stream_options": _closed({"include_obfuscation": _FLAG}),
            **{name: schema for name, schema in _SAMPLING.items() if name != "n"},
            **_TOOLS,
        },
        "input",
    ),
    "TokenizeRequest": _either(
        _closed({"model": _TEXT, "prompt": _TEXT, "add_special_tokens": _FLAG}, "prompt"),
        _closed(
            {"model": _TEXT, "messages": _list(_ref("Message"), None, 1), **_TOOLS}, "messages"
        ),
    ),
    "DetokenizeRequest": _closed({"model": _TEXT, "tokens": _list(_TOKEN)}, "tokens"),
    "LoadAdapterRequest": _closed(_ADAPTER | {"lora_path": _TEXT}, "lora_name", "lora_path"),
    "UnloadAdapterRequest": _closed(_ADAPTER, "lora_name"),
    "UpdateWeightsRequest": _closed({"model": _TEXT, "model_path": _TEXT}, "model_path"),
    "Error": {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "message": _TEXT,
                    "type": _TEXT,
                    "param": {"type": ["string", "null"]},
                    "code": _TEXT,
                },
                "required": ["message", "type", "param", "code"],
            }
        },
        "required": ["error"],
    },
}
