"""Routes of the yard page: its files, and the news that it draws.

Everything is at one place, `/yard` and below; nothing is loaded from elsewhere. Files are for
everybody, news for whoever may call. Knows nothing of what is in the news.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from blockyard.cluster.dashboard.yard_feed import YardFeed
from blockyard.cluster.http.key_gate import PAGE_FILE, caller_of
from blockyard.cluster.request.caller import Caller

__all__ = ["yard_routes"]

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_HEADERS = {
    # A page that shows what people ask may not talk to anybody else.
    "content-security-policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "cache-control": "no-cache",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def yard_routes(feed: YardFeed) -> list[BaseRoute]:
    """Routes for a Starlette application; call `feed.end()` before it stops."""
    folder = files(__package__).joinpath("static")

    async def outside(request: Request) -> Response:
        return RedirectResponse("/yard/")

    async def news(request: Request) -> Response:
        events = _events(feed, request.query_params.get("group", ""), caller_of(request))
        return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)

    contents = {item.name: item.read_bytes() for item in folder.iterdir() if item.is_file()}
    contents[""] = contents.pop("index.html")
    return [
        Route("/yard", outside, name=PAGE_FILE),
        *(_file(name, content) for name, content in contents.items()),
        Route("/yard/news", news),
    ]


async def _events(feed: YardFeed, group_id: str, viewer: Caller) -> AsyncGenerator[bytes, None]:
    async with aclosing(feed.watch(group_id, viewer)) as watch:
        async for news in watch:
            yield b"data: " + news + b"\n\n"


def _file(name: str, content: bytes) -> Route:
    kind = _TYPES["." + (name or "index.html").rpartition(".")[2]]

    async def give(request: Request) -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)

    return Route(f"/yard/{name}", give, name=PAGE_FILE)
