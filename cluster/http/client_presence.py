"""Work for an HTTP client that ends when the client leaves, and streams of events to it.

A server learns that a client has left only by asking for its next message, so somebody has to ask
while work is under way. Knows nothing of what is sent.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["EventStream", "unless_left"]

T = TypeVar("T")


async def unless_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; it is cancelled when the client leaves, and has ended when this returns.

    Raises:
        ClientDisconnect: the client left first.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_until_left(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


class EventStream(Response):
    """Server-sent events, as fast as the client takes them.

    Args:
        first: the first of them, which was waited for so that a refusal has its own status.
        rest: the others; closed on every way out.
    """

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until the client leaves."""
        try:
            await unless_left(receive, self._send(send))
        except ClientDisconnect:
            pass
        finally:
            await self._rest.aclose()

    async def _send(self, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for event in self._rest:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
