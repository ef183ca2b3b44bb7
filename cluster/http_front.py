"""An HTTP server in front of a dispatcher, beside the gRPC one, in the same event loop.

Binds to this machine only unless told otherwise. Knows nothing of engines. Units: seconds.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import uvicorn
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from blockyard.cluster.adapters.adapter_api import AdapterApi
from blockyard.cluster.dispatch import Dispatcher
from blockyard.cluster.http_api import HttpApi
from blockyard.cluster.request.api_keys import KeyRing
from blockyard.cluster.request.observer import RequestObserver
from blockyard.cluster.states.state_api import StateApi
from blockyard.cluster.tls import TlsFiles
from blockyard.cluster.tokenizer import ModelTokenizer

__all__ = ["HttpFront"]

_POLL_SECONDS = 0.01
_KEEP_ALIVE_SECONDS = 75


class HttpFront:
    """The server's life: start, then stop with time for calls to end."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        tokenizers: Mapping[str, ModelTokenizer],
        pages: Sequence[BaseRoute] = (),
        keys: KeyRing | None = None,
        observer: RequestObserver | None = None,
        states: StateApi | None = None,
        adapters: AdapterApi | None = None,
    ) -> None:
        """`pages` are for people; see `HttpApi`."""
        self._api = HttpApi(
            dispatcher,
            tokenizers,
            pages=pages,
            keys=keys,
            observer=observer,
            states=states,
            adapters=adapters,
        )
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, tls: TlsFiles | None = None) -> int:
        """Begin to serve; the port, which is chosen when `port` is 0.

        Raises:
            OSError: the address cannot be bound.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except OSError as error:
            listener.close()
            raise OSError(
                f"cannot listen on {host}:{port} ({error.strerror}); is another server running "
                "there?"
            ) from None
        self._server = _Server(
            uvicorn.Config(
                self._serve_call,
                interface="asgi3",
                lifespan="off",
                proxy_headers=False,
                log_level="critical",  # failures are logged where they are told of
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                **(tls.http_options() if tls is not None else {}),
            )
        )
        self._serving = asyncio.create_task(
            self._server.serve(sockets=[listener]), name="http-front"
        )
        while not self._server.started:
            if self._serving.done():
                await self._serving
                raise OSError(f"cannot serve on {host}:{port}")
            await asyncio.sleep(_POLL_SECONDS)
        bound: int = listener.getsockname()[1]
        return bound

    async def stop(self, grace_seconds: float | None) -> None:
        """Take no new calls; give those under way so long, then cancel them."""
        if self._server is None or self._serving is None:
            return
        # It waits any time, whatever its type says; rounded, a short grace would be none.
        grace: Any = 0 if grace_seconds is None else grace_seconds
        self._server.config.timeout_graceful_shutdown = grace
        self._server.should_exit = True
        await self._serving
        # Those that were cancelled free what they hold; whoever stops us relies on that.
        await asyncio.gather(*self._server.server_state.tasks, return_exceptions=True)
        await self._api.close()

    async def _serve_call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call; cancelled at a stop it just ends, which is no failure to be logged."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._api.app(scope, receive, send)


class _Server(uvicorn.Server):
    """One that leaves signals to whoever runs this process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
