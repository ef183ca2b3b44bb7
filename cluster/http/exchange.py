"""What HTTP routes do alike: read a JSON body, answer with JSON or events, tell of failures.

A client that leaves has its request aborted at once, streaming or not. Knows no route. Units:
bytes.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from blockyard.cluster.http.client_presence import EventStream, unless_left
from blockyard.cluster.http.http_errors import error_body, error_headers, http_status
from blockyard.cluster.request.api_error import ApiError
from blockyard.cluster.request.generation import unexpected_error
from blockyard.cluster.request.limits import invalid

__all__ = [
    "DONE",
    "MAX_BODY_BYTES",
    "Events",
    "Handler",
    "encode_events",
    "event_response",
    "failure_response",
    "guarded",
    "json_response",
    "read_body",
]

MAX_BODY_BYTES = 16 * 1024 * 1024

_GONE = 499
"""Nobody reads this status; logs do."""

Handler = Callable[[Request], Awaitable[Response]]
Events = AsyncGenerator[bytes, None]

DONE = b"data: [DONE]\n\n"


def guarded(handler: Handler) -> Handler:
    """The handler, its failures told as they should be."""

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except ApiError as error:
            failure = error
        except ClientDisconnect:
            return Response(status_code=_GONE)
        except Exception as error:
            failure = unexpected_error(error, "an HTTP request")
        return failure_response(failure)

    return guarded


async def event_response(request: Request, events: Events) -> Response:
    """A stream whose first event is there; a failure before it has a status of its own."""
    try:
        first = await unless_left(request.receive, _first(events))
    except BaseException:
        await events.aclose()
        raise
    return EventStream(first, _with_failure(events))


async def _first(events: Events) -> bytes:
    return await anext(events, b"")


async def _with_failure(events: Events) -> Events:
    """The rest of a stream; a failure in its middle is its last event."""
    try:
        async with aclosing(events):
            async for event in events:
                yield event
        return
    except ApiError as error:
        failure = error
    except Exception as error:
        failure = unexpected_error(error, "an HTTP stream")
    yield encode_events([error_body(failure)])


def encode_events(pieces: list[dict[str, Any]]) -> bytes:
    """Server-sent events, one for each piece."""
    return b"".join(b"data: " + msgspec.json.encode(piece) + b"\n\n" for piece in pieces)


async def read_body(request: Request) -> object:
    """The JSON of a request, read no further than it may be long."""
    size = 0
    parts: list[bytes] = []
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise invalid("body", f"has more than {MAX_BODY_BYTES:,} bytes")
        parts.append(part)
    try:
        return (
            await asyncio.to_thread(msgspec.json.decode, b"".join(parts))
            if (size > _QUICK_BODY_BYTES)
            else msgspec.json.decode(b"".join(parts))
        )
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid("body", f"is not JSON: {error}") from None


_QUICK_BODY_BYTES = 1 << 18
"""Bodies up to this are parsed at once; larger ones in a thread, so that streams go on."""


def json_response(
    body: dict[str, Any], status: int = 200, headers: Mapping[str, str] = {}
) -> Response:
    """An answer of JSON."""
    encoded = msgspec.json.encode(body)
    return Response(encoded, status, dict(headers), media_type="application/json")


def failure_response(error: ApiError) -> Response:
    """What a failed call is told."""
    return json_response(error_body(error), http_status(error), error_headers(error))
