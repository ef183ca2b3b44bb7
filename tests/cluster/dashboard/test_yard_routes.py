"""The page's files as a browser gets them, and the stream of news."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette

import blockyard.cluster.dashboard
from blockyard.cluster.dashboard.yard_feed import YardFeed
from blockyard.cluster.dashboard.yard_routes import yard_routes

STATIC = Path(blockyard.cluster.dashboard.__file__).parent / "static"


class Nobody:
    async def yards(self, group_id: str, max_cells: int) -> tuple[Any, ...]:
        return ()


@pytest.fixture
def feed() -> YardFeed:
    return YardFeed(Nobody(), 0.001)


@pytest.fixture
async def client(feed: YardFeed) -> AsyncIterator[Any]:
    transport = httpx2.ASGITransport(Starlette(routes=yard_routes(feed)))
    async with httpx2.AsyncClient(transport=transport, base_url="http://yard") as client:
        yield client


async def test_the_page_and_all_it_names(client: Any) -> None:
    moved = await client.get("/yard")
    assert (moved.status_code, moved.headers["location"]) == (307, "/yard/")
    page = await client.get("/yard/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    named = set(re.findall(r'(?:src|href)="([\w.]+)"', page.text))
    for script in STATIC.glob("*.js"):
        named |= set(re.findall(r'from "\./([\w.]+)"', script.read_text()))
    assert named == {item.name for item in STATIC.iterdir()} - {"index.html"}
    for name in named:
        answer = await client.get(f"/yard/{name}")
        assert answer.status_code == 200
        assert answer.text == (STATIC / name).read_text()


async def test_nothing_comes_from_elsewhere(client: Any) -> None:
    page = await client.get("/yard/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for item in STATIC.iterdir():
        assert not re.search(r"https?://", item.read_text()), item.name
        # What the policy would block without a word.
        assert not re.search(r' style="| on\w+="', item.read_text()), item.name


@pytest.mark.parametrize("name", ["no.js", "..%2fyard_feed.py", "__init__.py"])
async def test_other_files_are_not_given(client: Any, name: str) -> None:
    assert (await client.get(f"/yard/{name}")).status_code == 404


async def test_files_are_for_everybody_and_news_for_who_may_call(make_yard: Any, keys: Any) -> None:
    yard = await make_yard(8, keys=keys.ring)
    async with httpx2.AsyncClient(base_url=yard.url, timeout=60) as client:
        for item in STATIC.iterdir():
            name = "" if item.name == "index.html" else item.name
            assert (await client.get(name)).status_code == 200
        refused = await client.get("news")
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
        assert (await client.get("/yard/nothing.js")).status_code == 401
        shown = {"authorization": f"Bearer {keys.red}"}
        async with client.stream("GET", "news", headers=shown) as news:
            assert news.status_code == 200


async def test_news_are_server_sent_events() -> None:
    feed = YardFeed(Nobody(), 0.001)
    [route] = [route for route in yard_routes(feed) if getattr(route, "path", "") == "/yard/news"]
    app = Starlette(routes=[route])
    told: list[bytes] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("nobody leaves")

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert (b"content-type", b"text/event-stream; charset=utf-8") in message["headers"]
        elif message["body"]:
            told.append(message["body"])
            if len(told) == 3:
                feed.end()

    scope = {"type": "http", "method": "GET", "path": "/yard/news", "headers": []}
    async with asyncio.timeout(60):
        await app({**scope, "query_string": b"group=g", "http_version": "1.1"}, receive, send)
    assert len(told) == 3
    for event in told:
        assert event.startswith(b"data: {") and event.endswith(b"}\n\n")
        assert json.loads(event[6:])["groups"] == []
