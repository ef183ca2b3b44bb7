"""Routes of requests that are being served: why they wait, and their end if so asked."""

import contextlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from blockyard.cluster.http.exchange import json_response
from blockyard.cluster.http.key_gate import caller_of
from blockyard.cluster.request.api_error import ApiError
from blockyard.cluster.request.request_service import RequestService
from blockyard.protos import generation_pb2 as pb

__all__ = ["RequestRoutes"]

_PREFIXES = ("chatcmpl-", "cmpl-", "resp_")
"""What stands before a request's name in the ids of answers."""


class RequestRoutes:
    """Each method answers one route."""

    def __init__(self, service: RequestService) -> None:
        self._service = service

    async def explain(self, request: Request) -> Response:
        """`GET /v1/requests/ID`."""
        *others, last = _names(request)
        for name in others:
            with contextlib.suppress(ApiError):
                return await self._explain(name, request)
        return await self._explain(last, request)

    async def abort(self, request: Request) -> Response:
        """`DELETE /v1/requests/ID`."""
        for name in _names(request):
            asked = pb.AbortRequest(request_id=name)
            told = await self._service.abort(asked, caller_of(request))
            if told.aborted:
                break
        return json_response({"id": asked.request_id, "object": "request", "aborted": told.aborted})

    async def _explain(self, name: str, request: Request) -> Response:
        asked = pb.ExplainRequest(request_id=name)
        told = await self._service.explain(asked, caller_of(request))
        choices = [_state(choice) for choice in told.choices]
        return json_response({"id": told.request_id, "object": "request", "choices": choices})


def _names(request: Request) -> tuple[str, ...]:
    """What a client may mean: a request's own name, then the id of an answer to it."""
    name = str(request.path_params["request_id"])
    for prefix in _PREFIXES:
        if name.startswith(prefix) and name != prefix:
            return name, name.removeprefix(prefix)
    return (name,)


def _state(choice: pb.ChoiceState) -> dict[str, Any]:
    return {
        "index": choice.choice,
        "state": choice.state,
        "waits_for": choice.waits_for,
        "place": choice.place,
        "blocks_short": choice.blocks_short,
        "holders": [
            {"id": holder.request_id or None, "blocks": holder.blocks} for holder in choice.holders
        ],
        "estimate_seconds": (
            choice.estimate_seconds if choice.HasField("estimate_seconds") else None
        ),
        "behind": choice.behind or None,
    }
