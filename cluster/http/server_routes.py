"""Routes about the server itself: its models, whether it is well, its metrics."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from blockyard import __version__
from blockyard.cluster.dispatch import Dispatcher
from blockyard.cluster.http.openapi import openapi_document
from blockyard.cluster.metrics import scrape
from blockyard.cluster.request.api_error import RETRY_AFTER_SECONDS, ApiCode, ApiError
from blockyard.cluster.request.served_model import ServedModel, find_served, served_models

__all__ = ["ServerRoutes"]

_READY_SECONDS = 2.0
_REPORT_SECONDS = 8.0
"""More than an engine is given to answer; less than the ten seconds a scraper waits."""


class ServerRoutes:
    """Each method answers one route."""

    def __init__(self, dispatcher: Dispatcher, created: int) -> None:
        """`created` is when this server began, in seconds since 1970."""
        self._dispatcher = dispatcher
        self._created = created
        self._scraping = asyncio.Lock()

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        found = [self._model(served) for served in served_models(self._dispatcher)]
        return _json({"object": "list", "data": found})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/NAME`."""
        return _json(
            self._model(find_served(self._dispatcher, request.path_params["model"], "model"))
        )

    async def openapi(self, request: Request) -> Response:
        """`GET /openapi.json`: what the routes take."""
        return _json(openapi_document(__version__))

    async def health(self, request: Request) -> Response:
        """`GET /health`: this process answers."""
        return _json({"status": "up"})

    async def ready(self, request: Request) -> Response:
        """`GET /ready`: traffic is welcome."""
        try:
            ready = await asyncio.wait_for(self._dispatcher.ready(), _READY_SECONDS)
        except TimeoutError:
            ready = False
        if ready:
            return _json({"status": "ready"})
        raise ApiError(
            ApiCode.UNAVAILABLE,
            "",
            "traffic is not welcome now: a model has no group, or the server is shutting down",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )

    async def metrics(self, request: Request) -> Response:
        """`GET /metrics`: the books, for Prometheus. One scrape at a time."""
        try:
            async with asyncio.timeout(_REPORT_SECONDS), self._scraping:
                accept = request.headers.get("accept", "")
                text, content_type = await scrape(self._dispatcher, accept)
        except TimeoutError:
            raise ApiError(
                ApiCode.UNAVAILABLE,
                "",
                "the books did not come in time",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            ) from None
        return Response(text, headers={"content-type": content_type, "cache-control": "no-store"})

    def _model(self, served: ServedModel) -> dict[str, Any]:
        told = {
            "id": served.name,
            "object": "model",
            "created": self._created,
            "owned_by": "blockyard",
            "max_model_len": served.model.context_tokens,
        }
        if served.adapter is not None:
            told["parent"] = served.model.name
        return told


def _json(body: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
