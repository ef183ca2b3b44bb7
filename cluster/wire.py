"""Length-prefixed msgpack frames over TCP, opened by a handshake (`handshake.py`).

One wire serves every pair of our processes. It knows nothing of what the messages mean: a channel
is given the type it may receive, and anything else on it ends the connection. End of file is how
the death of a peer is noticed. Frame: 4 bytes big-endian length, then that many bytes.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from blockyard.cluster.handshake import (
    HANDSHAKE_SECONDS,
    new_secret,
    prove_as_client,
    prove_as_server,
)

__all__ = [
    "CLOSE_SECONDS",
    "MAX_FRAME_BYTES",
    "Codec",
    "Connection",
    "Endpoint",
    "Listener",
    "WireError",
    "connect",
    "frame",
    "listen",
    "tune",
]

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = 64 * 1024 * 1024
CLOSE_SECONDS = 2.0
"""How long a connection that is closed may take to hand over what was posted before."""
_HEADER_BYTES = 4
_SILENT_SECONDS = 10
"""After so long without a byte the kernel asks whether the peer's machine is still there."""
_VANISHED_SECONDS = 30
"""A machine that has not answered for so long is gone, and the connection with it."""

Received = TypeVar("Received")


class WireError(ConnectionError):
    """The peer sent something that is not allowed on this channel."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a listener is and how to prove oneself there. The secret never shows in logs."""

    host: str
    port: int
    secret: bytes = field(repr=False)


class Codec(Generic[Received]):
    """Encodes any message; decodes only the type that the channel may receive."""

    def __init__(self, received: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(received)

    def encode(self, message: object) -> bytes:
        """One whole frame, header included."""
        return frame(self._encoder.encode(message))

    def decode(self, payload: bytes) -> Received:
        """The message in a frame's payload.

        Raises:
            WireError: the payload is not a message of this channel.
        """
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            raise WireError(
                f"a frame of {len(payload)} bytes is not for this channel: {error}"
            ) from error


def frame(payload: bytes) -> bytes:
    """Put the length in front of a payload."""
    if len(payload) > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {len(payload)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return len(payload).to_bytes(_HEADER_BYTES, "big") + payload


class Connection(Generic[Received]):
    """One established, authenticated connection, for use in one event loop."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        codec: Codec[Received],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._codec = codec

    def post(self, message: object) -> None:
        """Queue a message for sending; call `drain` where the amount is not bounded otherwise."""
        self._writer.write(self._codec.encode(message))

    def post_frame(self, encoded: bytes) -> None:
        """Queue an already encoded frame, so that one encoding serves many connections."""
        self._writer.write(encoded)

    async def drain(self) -> None:
        """Wait until the peer has taken enough of what was posted."""
        await self._writer.drain()

    async def receive(self) -> Received | None:
        """The next message, or None when the peer is gone.

        Raises:
            WireError: the peer sent something else than this channel's messages.
        """
        try:
            header = await self._reader.readexactly(_HEADER_BYTES)
            length = int.from_bytes(header, "big")
            if length > MAX_FRAME_BYTES:
                raise WireError(f"peer announced a frame of {length} bytes, over the limit")
            payload = await self._reader.readexactly(length)
        except WireError:
            raise
        except (asyncio.IncompleteReadError, OSError):
            return None
        return self._codec.decode(payload)

    def hold(self, seconds: float) -> None:
        """Hear nothing for so long; what the peer sends meanwhile comes after it."""
        transport = self._reader._transport  # type: ignore[attr-defined]  # no public way
        transport.pause_reading()
        asyncio.get_running_loop().call_later(seconds, transport.resume_reading)

    def abort(self) -> None:
        """Drop the connection at once, with whatever was not sent yet; `receive` then ends."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Send what was posted, as far as the peer takes it in time, and close. Safe to repeat."""
        await _close(self._writer)


class Listener:
    """A listening socket; `endpoint` is what peers need to reach it."""

    def __init__(
        self,
        server: asyncio.Server,
        endpoint: Endpoint,
        closing: asyncio.Event,
        open_tasks: set[asyncio.Task[Any]],
    ) -> None:
        self._server = server
        self._closing = closing
        self._open_tasks = open_tasks
        self.endpoint = endpoint

    async def close(self) -> None:
        """Stop listening and end every connection's handler."""
        self._closing.set()
        self._server.close()
        tasks = list(self._open_tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()


async def listen(
    codec: Codec[Received],
    handler: Callable[[Connection[Received]], Awaitable[None]],
    host: str = "127.0.0.1",
    port: int = 0,
) -> Listener:
    """Listen, and run `handler` for each peer that proves the secret; the kernel picks port 0."""
    secret = new_secret()
    closing = asyncio.Event()
    open_tasks: set[asyncio.Task[Any]] = set()

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_tasks.add(task)
        try:
            # A peer may have been accepted just before the listener closed.
            if not closing.is_set() and await _admit(reader, writer, secret):
                await handler(Connection(reader, writer, codec))
        except asyncio.CancelledError:
            # The listener is closing. asyncio.streams would report a cancelled handler as an error.
            return
        finally:
            open_tasks.discard(task)
            await _close(writer)

    server = await asyncio.start_server(on_connect, host, port)
    bound_host, bound_port = server.sockets[0].getsockname()[:2]
    return Listener(server, Endpoint(bound_host, bound_port, secret), closing, open_tasks)


async def connect(endpoint: Endpoint, codec: Codec[Received]) -> Connection[Received]:
    """Connect and prove the secret.

    Raises:
        HandshakeError: the peer is not the one that gave out this endpoint.
        OSError: nobody listens there, or nobody answers in time.
    """
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        try:
            tune(writer.get_extra_info("socket"))
            await prove_as_client(reader, writer, endpoint.secret)
        except BaseException:
            await _close(writer)
            raise
    return Connection(reader, writer, codec)


def tune(peer: socket.socket) -> None:
    """Send each message at once, and notice a peer whose machine vanished without a word."""
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_SECONDS)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENT_SECONDS)
    # In milliseconds; it overrides the number of keep-alive probes.
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _VANISHED_SECONDS * 1000)


async def _admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes) -> bool:
    """Whether a new peer has proved the secret in time."""
    try:
        tune(writer.get_extra_info("socket"))
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            await prove_as_server(reader, writer, secret)
    except OSError as error:
        logger.info("a peer was sent away: %s", error or "it did not speak in time")
        return False
    return True


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    # A peer that reads no more would keep the connection, and whoever waits for its end, for ever.
    abort = asyncio.get_running_loop().call_later(CLOSE_SECONDS, writer.transport.abort)
    # How the connection ended was noticed by whoever read from it. Shielded, because a cancelled
    # wait_closed() makes every later one fail.
    with contextlib.suppress(OSError):
        await asyncio.shield(writer.wait_closed())
    abort.cancel()
