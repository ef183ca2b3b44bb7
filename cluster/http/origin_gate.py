"""Keeps web pages of other sites from calling a server through the browsers that show them.

A page can have its reader's browser send a call to any address, a loopback one too, though it may
not read the answer. So calls that change or begin something are refused when the browser says that
they come from elsewhere. A name that was made to point here passes for the same site; therefore
calls that change what is served must, if a browser sends them, name an address or localhost. Other
clients say nothing of pages, and a call that shows an API key is none that a page could have sent.
"""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from blockyard.cluster.http.http_errors import error_body, http_status
from blockyard.cluster.request.api_error import ApiCode, ApiError

__all__ = ["OriginGate"]

_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})


class OriginGate:
    """Lets calls through to `app`; those at `admin_paths` change what is served.

    With `has_keys` a key that a call shows is looked at behind this; else anybody may make one up.
    """

    def __init__(
        self, app: ASGIApp, admin_paths: Iterable[str] = (), has_keys: bool = False
    ) -> None:
        self._app = app
        self._admin_paths = frozenset(admin_paths)
        self._has_keys = has_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call."""
        if scope["type"] == "http" and scope["method"] not in _HARMLESS:
            headers = Headers(scope=scope)
            shows_key = "authorization" in headers
            reason = "" if shows_key else _foreign(headers)
            if scope["path"] in self._admin_paths and not (shows_key and self._has_keys):
                reason = reason or _misnamed(headers)
            if reason:
                error = ApiError(ApiCode.PERMISSION_DENIED, "", reason)
                body = msgspec.json.encode(error_body(error))
                refusal = Response(body, http_status(error), media_type="application/json")
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _foreign(headers: Headers) -> str:
    """Why a call is that of another site's page; empty when it is not."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site == "same-origin":
        return ""
    if site == "cross-site" or (origin is not None and not _is_same(origin, headers)):
        return "a web page of another origin may not send such calls; send them from a program"
    return ""


def _is_same(origin: str, headers: Headers) -> bool:
    host = headers.get("host", "").lower()
    return bool(host) and origin.lower().partition("://")[2] == host


def _misnamed(headers: Headers) -> str:
    """Why a browser's call does not name this server; empty when it does or is no browser's."""
    if "sec-fetch-site" not in headers and "origin" not in headers:
        return ""
    name = ""
    try:
        name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        ipaddress.ip_address(name)
    except ValueError:
        if name != "localhost" and not name.endswith(".localhost"):
            return (
                "a browser may send such calls to an address or to localhost only, for a name can "
                "be made to point anywhere"
            )
    return ""
