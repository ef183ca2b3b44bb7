"""Serves the metrics over HTTP/1.1 to a Prometheus scraper: `GET /metrics`.

Beside them only `GET /ready`, for probes that have no certificate where clients must show one.

Runs in the ingress's event loop, asleep until somebody asks; the text is made in a thread. One
scrape at a time, each with a time limit, each on a connection of its own. Units: seconds, bytes.
"""

import asyncio
import logging

from blockyard.cluster.dispatch import Dispatcher
from blockyard.cluster.metrics import scrape

__all__ = ["MetricsEndpoint"]

logger = logging.getLogger(__name__)

_PLAIN = "text/plain; charset=utf-8"
_MOST_REQUEST_BYTES = 16 * 1024
_MOST_CONNECTIONS = 16
_READ_SECONDS = 5.0
_READY_SECONDS = 2.0
_REPORT_SECONDS = 8.0
"""More than an engine is given to answer, so that a stuck one is left out; less than the ten
seconds a scraper waits by default."""


class MetricsEndpoint:
    """The listener's life: start, then stop."""

    def __init__(self, dispatcher: Dispatcher, report_seconds: float = _REPORT_SECONDS) -> None:
        self._dispatcher = dispatcher
        self._report_seconds = report_seconds
        self._scraping = asyncio.Lock()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Begin to listen; the port, which is chosen when `port` is 0.

        Raises:
            OSError: the address cannot be bound.
        """
        self._server = await asyncio.start_server(
            self._accept, host, port, limit=_MOST_REQUEST_BYTES
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Stop listening and drop who is being answered."""
        if self._server is None:
            return
        self._server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _MOST_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer), name="metrics-scrape")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            answer = await self._answer(head.decode("latin-1"))
            async with asyncio.timeout(_READ_SECONDS):
                writer.write(answer)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # not a scraper, or one that has lost interest
        finally:
            writer.transport.abort()  # nothing is left of it, or nothing should be

    async def _answer(self, head: str) -> bytes:
        request_line, *header_lines = head.split("\r\n")
        method, _, rest = request_line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"use GET\n", extra="Allow: GET, HEAD\r\n")
        if path == "/ready":
            ready, with_body = await self._ready(), method == "GET"
            if not ready:
                status = "503 Service Unavailable"
                return _response(status, b"traffic is not welcome now\n", with_body=with_body)
            return _response("200 OK", b"ready\n", with_body=with_body)
        if path != "/metrics":
            return _response("404 Not Found", b"the metrics are at /metrics\n")
        try:
            body, content_type = await self._scrape(_header(header_lines, "accept"))
        except TimeoutError:
            return _response("503 Service Unavailable", b"the books did not come in time\n")
        except Exception:
            logger.exception("a scrape failed")
            return _response("500 Internal Server Error", b"the server failed; see its log\n")
        return _response("200 OK", body, content_type, with_body=method == "GET")

    async def _ready(self) -> bool:
        try:
            async with asyncio.timeout(_READY_SECONDS):
                return await self._dispatcher.ready()
        except TimeoutError:
            return False

    async def _scrape(self, accept: str) -> tuple[bytes, str]:
        async with asyncio.timeout(self._report_seconds), self._scraping:
            return await scrape(self._dispatcher, accept)


def _header(lines: list[str], wanted: str) -> str:
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == wanted:
            return value.strip()
    return ""


def _response(
    status: str, body: bytes, content_type: str = _PLAIN, extra: str = "", with_body: bool = True
) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        f"{extra}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (body if with_body else b"")
