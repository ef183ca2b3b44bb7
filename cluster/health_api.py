"""What the gRPC health service answers, free of any gRPC server. Units: seconds."""

import asyncio
import logging
from collections.abc import AsyncGenerator

from grpc_health.v1 import health_pb2

from blockyard.cluster.dispatch import Dispatcher
from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.malformed_message import MalformedMessage, well_formed

__all__ = ["SERVED_SERVICES", "HealthApi"]

_LOG = logging.getLogger(__name__)

SERVED_SERVICES = ("blockyard.v1.Generation", "blockyard.v1.Cluster")
"""Names that health checks may ask for, besides the empty one for the whole server."""


class HealthApi:
    """`grpc.health.v1.Health`: serving means that traffic is welcome now."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        watch_interval_seconds: float = 1.0,
        answer_within_seconds: float = 2.0,
    ) -> None:
        """A dispatcher that does not say within `answer_within_seconds` is not serving."""
        self._dispatcher = dispatcher
        self._watch_interval_seconds = watch_interval_seconds
        self._answer_within_seconds = answer_within_seconds

    async def check(
        self, request: health_pb2.HealthCheckRequest | MalformedMessage
    ) -> health_pb2.HealthCheckResponse:
        """The state now. Raises `ApiError` NOT_FOUND for services that are not ours."""
        name = well_formed(request).service
        if name and name not in SERVED_SERVICES:
            raise ApiError(ApiCode.NOT_FOUND, "service", f"{name[:80]!r} is not served here")
        return health_pb2.HealthCheckResponse(status=await self._status())

    async def watch(
        self, request: health_pb2.HealthCheckRequest | MalformedMessage
    ) -> AsyncGenerator[health_pb2.HealthCheckResponse, None]:
        """The state now and again at each change, until the client leaves."""
        name = well_formed(request).service
        known = not name or name in SERVED_SERVICES
        told = None
        while True:
            # The protocol wants a watch of an unknown service kept open: it may appear later.
            status = (
                await self._status() if known else health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            )
            if status != told:
                told = status
                yield health_pb2.HealthCheckResponse(status=status)
            await asyncio.sleep(self._watch_interval_seconds)

    async def list(
        self, request: health_pb2.HealthListRequest | MalformedMessage
    ) -> health_pb2.HealthListResponse:
        """The state of every service."""
        well_formed(request)
        response = health_pb2.HealthCheckResponse(status=await self._status())
        return health_pb2.HealthListResponse(
            statuses={name: response for name in ("", *SERVED_SERVICES)}
        )

    async def _status(self) -> int:
        try:
            ready = await asyncio.wait_for(
                self._dispatcher.ready(), timeout=self._answer_within_seconds
            )
        except Exception as error:
            _LOG.warning("not serving: the dispatcher does not say that it is ready (%r)", error)
            ready = False
        states = health_pb2.HealthCheckResponse
        return int(states.SERVING if ready else states.NOT_SERVING)
