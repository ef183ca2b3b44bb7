"""Routes of the yard page: its files, and the news that it draws.

Everything is at one place, `/yard` and below; nothing is loaded from elsewhere. Knows nothing of
what is in the news.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from blockyard.cluster.dashboard.yard_feed import YardFeed

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
    contents = {item.name: item.read_bytes() for item in folder.iterdir() if item.is_file()}

    async def page(request: Request) -> Response:
        return _file("index.html", contents)

    async def static(request: Request) -> Response:
        return _file(request.path_params["name"], contents)

    async def outside(request: Request) -> Response:
        return RedirectResponse("/yard/")

    async def news(request: Request) -> Response:
        events = _events(feed, request.query_params.get("group", ""))
        return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)

    return [
        Route("/yard", outside),
        Route("/yard/", page),
        Route("/yard/news", news),
        Route("/yard/{name}", static),
    ]


async def _events(feed: YardFeed, group_id: str) -> AsyncGenerator[bytes, None]:
    async with aclosing(feed.watch(group_id)) as watch:
        async for news in watch:
            yield b"data: " + news + b"\n\n"


def _file(name: str, contents: dict[str, bytes]) -> Response:
    if name not in contents:
        return Response("no such file\n", 404, media_type="text/plain")
    kind = _TYPES["." + name.rpartition(".")[2]]
    return Response(contents[name], media_type=kind, headers=_HEADERS)
