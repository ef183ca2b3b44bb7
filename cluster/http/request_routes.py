"""Routes of requests that are being served: why they wait, and their end if so asked."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from blockyard.cluster.http.exchange import json_response
from blockyard.cluster.http.key_gate import caller_of
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
        asked = pb.ExplainRequest(request_id=_name(request))
        told = await self._service.explain(asked, caller_of(request))
        choices = [_state(choice) for choice in told.choices]
        return json_response({"id": told.request_id, "object": "request", "choices": choices})

    async def abort(self, request: Request) -> Response:
        """`DELETE /v1/requests/ID`."""
        asked = pb.AbortRequest(request_id=_name(request))
        told = await self._service.abort(asked, caller_of(request))
        return json_response({"id": asked.request_id, "object": "request", "aborted": told.aborted})


def _name(request: Request) -> str:
    name = str(request.path_params["request_id"])
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


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
