"""API keys in the `Authorization` header of HTTP calls."""

from collections.abc import Iterable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from blockyard.cluster.http.http_errors import error_body, error_headers, http_status
from blockyard.cluster.request.api_error import ApiError
from blockyard.cluster.request.api_keys import KeyRing
from blockyard.cluster.request.caller import Caller

__all__ = ["PAGE_FILE", "KeyGate", "caller_of"]

PAGE_FILE = "page-file"
"""Name of routes that anybody may ask: files of pages, which are the same for all."""

_PROBES = frozenset({"/health", "/ready"})
"""They have no key."""

_TENANT = "blockyard.tenant"
_SEES_ALL = "blockyard.sees_all"


class KeyGate:
    """Lets calls through to `app` that show a key of `keys`, and notes whose it is.

    Whatever is at `open_paths` is for everybody, as probes are.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing, open_paths: Iterable[str] = ()) -> None:
        self._app = app
        self._keys = keys
        self._open = _PROBES | frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call."""
        if scope["type"] == "http" and scope["path"] not in self._open:
            try:
                key = self._keys.key_of(Request(scope).headers.get("authorization"))
            except ApiError as error:
                body = msgspec.json.encode(error_body(error))
                refusal = Response(
                    body, http_status(error), error_headers(error), media_type="application/json"
                )
                await refusal(scope, receive, send)
                return
            if key is not None:
                scope = {**scope, _TENANT: key.tenant, _SEES_ALL: key.is_admin}
        await self._app(scope, receive, send)


def caller_of(request: Request) -> Caller:
    """Who makes a call that was let through."""
    traceparent = request.headers.get("traceparent", "")
    told = request.scope
    return Caller(
        told.get(_TENANT, ""), traceparent=traceparent, sees_all=told.get(_SEES_ALL, False)
    )
