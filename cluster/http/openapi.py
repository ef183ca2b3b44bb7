"""The OpenAPI document of the HTTP routes, for `GET /openapi.json`."""

from typing import Any

from blockyard.cluster.http.openapi_schemas import SCHEMAS

__all__ = ["openapi_document"]

_FAILURES = {
    "400": "The request is wrong; `param` names the field.",
    "401": "No API key was shown, or one that is not known.",
    "403": "This key may not do that, or nobody may on this server.",
    "404": "There is no such model, request or stream.",
    "409": "A live request has this name, or the stream is read by another call now.",
    "429": "Too much is being served; `retry-after` says when to try again.",
    "503": "Not ready, or the group was lost; `retry-after` says when to try again.",
    "504": "The deadline has passed.",
}

_POSTED = {
    "/v1/chat/completions": ("ChatCompletionRequest", "Answer a conversation.", True),
    "/v1/completions": ("CompletionRequest", "Continue texts.", True),
    "/v1/responses": ("ResponseRequest", "Answer items; nothing is stored.", True),
    "/tokenize": ("TokenizeRequest", "The tokens of a prompt or a conversation.", False),
    "/detokenize": ("DetokenizeRequest", "The text of tokens.", False),
    "/update_weights_from_disk": ("UpdateWeightsRequest", "Go on with other weights.", False),
    "/v1/load_lora_adapter": ("LoadAdapterRequest", "Serve an adapter.", False),
    "/v1/unload_lora_adapter": ("UnloadAdapterRequest", "Take no more requests for one.", False),
}

_STATES = {
    "/sleep": "Give back the memory of the model; requests wait. Of `?model=NAME`, or the first.",
    "/wake_up": "Load the model again and go on.",
}

_READ = {
    "/v1/models": "The models that are served.",
    "/v1/models/{model}": "One model.",
    "/health": "This process answers.",
    "/ready": "Traffic is welcome.",
    "/metrics": "The books, for Prometheus.",
    "/v1/requests/{request_id}": "Why a request of yours waits, while it is being served.",
    "/is_sleeping": "Whether the model sleeps, and what its weights are called.",
    "/openapi.json": "This document.",
}


def openapi_document(version: str) -> dict[str, Any]:
    """The document of this version of Blockyard."""
    paths: dict[str, dict[str, Any]] = {}
    for path, (schema, summary, streams) in _POSTED.items():
        paths[path] = {"post": _posted(schema, summary, streams)}
    for path, summary in _STATES.items():
        paths[path] = {"post": _operation(path, summary)}
    for path, summary in _READ.items():
        paths.setdefault(path, {})["get"] = _operation(path, summary)
    ended = _operation("/v1/requests/{request_id}", "End a request of yours.")
    paths["/v1/requests/{request_id}"]["delete"] = ended
    return {
        "openapi": "3.1.0",
        "info": {"title": "Blockyard", "version": version},
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _posted(schema: str, summary: str, streams: bool) -> dict[str, Any]:
    body = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    operation = _operation("", summary)
    operation["requestBody"] = {"required": True, "content": body}
    if streams:
        operation["responses"]["200"]["content"]["text/event-stream"] = {}
    return operation


def _operation(path: str, summary: str) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    answer: dict[str, Any] = {"text/plain": {}} if path == "/metrics" else {"application/json": {}}
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": "The answer.", "content": answer},
            **{code: {"description": why, "content": error} for code, why in _FAILURES.items()},
        },
    }
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    return operation
