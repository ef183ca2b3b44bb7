"""API keys in the `Authorization` header of HTTP calls."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from blockyard.cluster.http.http_errors import error_body, error_headers, http_status
from blockyard.cluster.request.api_error import ApiError
from blockyard.cluster.request.api_keys import KeyRing
from blockyard.cluster.request.caller import Caller

__all__ = ["KeyGate", "caller_of"]

_OPEN = frozenset({"/health", "/ready"})
"""Probes have no key."""

_TENANT = "blockyard.tenant"


class KeyGate:
    """Lets calls through to `app` that show a key of `keys`, and notes whose it is."""

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call."""
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            try:
                tenant = self._keys.tenant_of(Request(scope).headers.get("authorization"))
            except ApiError as error:
                body = msgspec.json.encode(error_body(error))
                refusal = Response(
                    body, http_status(error), error_headers(error), media_type="application/json"
                )
                await refusal(scope, receive, send)
                return
            scope = {**scope, _TENANT: tenant}
        await self._app(scope, receive, send)


def caller_of(request: Request) -> Caller:
    """Who makes a call that was let through."""
    traceparent = request.headers.get("traceparent", "")
    return Caller(request.scope.get(_TENANT, ""), traceparent=traceparent)
