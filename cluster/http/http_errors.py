"""`ApiError` as an HTTP status and a body in OpenAI's shape, with the fields of the JSON body."""

import math
import re
from typing import Any

from blockyard.cluster.request.api_error import ApiCode, ApiError

__all__ = ["error_body", "error_headers", "http_status"]

_STATUS = {
    ApiCode.INVALID_ARGUMENT: (400, "invalid_request_error"),
    ApiCode.NOT_FOUND: (404, "invalid_request_error"),
    ApiCode.UNAUTHENTICATED: (401, "authentication_error"),
    ApiCode.PERMISSION_DENIED: (403, "permission_error"),
    ApiCode.ALREADY_EXISTS: (409, "conflict_error"),
    ApiCode.RESOURCE_EXHAUSTED: (429, "rate_limit_error"),
    ApiCode.UNAVAILABLE: (503, "service_unavailable_error"),
    ApiCode.ABORTED: (409, "conflict_error"),
    ApiCode.DEADLINE_EXCEEDED: (504, "timeout_error"),
    ApiCode.INTERNAL: (500, "server_error"),
}

_NAMES = (
    (re.compile(r"^sampling\.structure\.(json_schema|json_object)$"), "response_format"),
    (re.compile(r"^sampling\.structure"), "structured_outputs"),
    (re.compile(r"^sampling\.(include_stop)$"), "include_stop_str_in_output"),
    (re.compile(r"^sampling\.(beam_width)$"), "use_beam_search"),
    (re.compile(r"^sampling\."), ""),
    (re.compile(r"^tokens\.ids"), "prompt"),
    (re.compile(r"^token_ids"), "tokens"),
    (re.compile(r"^chat\.messages"), "messages"),
    (re.compile(r"^chat\.template_variables"), "chat_template_kwargs"),
    (re.compile(r"^chat\.tool_name"), "tool_choice"),
    (re.compile(r"^chat\."), ""),
)


def http_status(error: ApiError) -> int:
    """The status code of a failed call."""
    return _STATUS[error.code][0]


def error_headers(error: ApiError) -> dict[str, str]:
    """Headers of a failed call: how to be let in, when to try again."""
    if error.code is ApiCode.UNAUTHENTICATED:
        return {"www-authenticate": "Bearer"}
    if error.retry_after_seconds is None:
        return {}
    return {"retry-after": str(math.ceil(error.retry_after_seconds))}


def error_body(error: ApiError) -> dict[str, Any]:
    """OpenAI's shape; `param` names the field as the JSON body has it."""
    param = _param(error.field)
    message = f"{param}: {error.message}" if param else error.message
    fields: dict[str, Any] = {
        "message": message,
        "type": _STATUS[error.code][1],
        "param": param or None,
        "code": "model_not_found" if _is_model(error) else error.code.value.lower(),
    }
    if error.incident:
        fields["incident"] = error.incident
    return {"error": fields}


def _is_model(error: ApiError) -> bool:
    return error.code is ApiCode.NOT_FOUND and error.field == "model"


def _param(field: str) -> str:
    for pattern, name in _NAMES:
        field, found = pattern.subn(name, field)
        if found:
            break
    return field
