"""Length-prefixed msgpack frames over TCP, opened by a handshake: both sides prove a secret.

One wire serves every pair of our processes. It knows nothing of what the messages mean: a channel
is given the type it may receive, and anything else on it ends the connection. End of file is how
the death of a peer is noticed. Frame: 4 bytes big-endian length, then that many bytes.
"""

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

__all__ = [
    "HANDSHAKE_SECONDS",
    "MAX_FRAME_BYTES",
    "Codec",
    "Connection",
    "Endpoint",
    "HandshakeError",
    "Listener",
    "WireError",
    "connect",
    "frame",
    "handshake_as_server",
    "listen",
    "new_secret",
]

MAX_FRAME_BYTES = 64 * 1024 * 1024
HANDSHAKE_SECONDS = 5.0
_HEADER_BYTES = 4
_GREETING = b"blockyard-wire-1"
_NONCE_BYTES = 32
_PROOF_BYTES = hashlib.sha256().digest_size

Received = TypeVar("Received")


class WireError(ConnectionError):
    """The peer sent something that is not allowed on this channel."""


class HandshakeError(WireError):
    """The peer could not prove that it knows the secret, or did not speak in time."""


def new_secret() -> bytes:
    """A fresh random secret for one listener."""
    return secrets.token_bytes(32)


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
        except (asyncio.IncompleteReadError, ConnectionError, OSError) as error:
            if isinstance(error, WireError):
                raise
            return None
        return self._codec.decode(payload)

    async def close(self) -> None:
        """Close and wait until closed. Safe to call twice."""
        await _close(self._writer)


class Listener:
    """A listening socket; `endpoint` is what peers need to reach it."""

    def __init__(self, server: asyncio.Server, endpoint: Endpoint, open_tasks: set[Any]) -> None:
        self._server = server
        self._open_tasks = open_tasks
        self.endpoint = endpoint

    async def close(self) -> None:
        """Stop listening and end every connection's handler."""
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
    open_tasks: set[asyncio.Task[Any]] = set()

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_tasks.add(task)
        connection = Connection(reader, writer, codec)
        try:
            _set_no_delay(writer)
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await _prove_as_server(reader, writer, secret)
            await handler(connection)
        except (HandshakeError, TimeoutError, OSError, asyncio.IncompleteReadError):
            return
        except asyncio.CancelledError:
            # The listener is closing. asyncio.streams would report a cancelled handler as an error.
            return
        finally:
            open_tasks.discard(task)
            await connection.close()

    server = await asyncio.start_server(on_connect, host, port)
    bound_host, bound_port = server.sockets[0].getsockname()[:2]
    return Listener(server, Endpoint(bound_host, bound_port, secret), open_tasks)


async def connect(endpoint: Endpoint, codec: Codec[Received]) -> Connection[Received]:
    """Connect and prove the secret.

    Raises:
        HandshakeError: the peer is not the one that gave out this endpoint.
        OSError: nobody listens there.
    """
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        try:
            _set_no_delay(writer)
            await _prove_as_client(reader, writer, endpoint.secret)
        except BaseException as error:
            await _close(writer)
            if isinstance(error, asyncio.IncompleteReadError | ConnectionResetError):
                reason = "the peer closed the connection during the handshake"
                raise HandshakeError(reason) from error
            raise
    return Connection(reader, writer, codec)


async def _prove_as_server(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes
) -> None:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    writer.write(_GREETING + nonce)
    answer = await reader.readexactly(_NONCE_BYTES + _PROOF_BYTES)
    writer.write(_check_client(secret, nonce, answer))


async def _prove_as_client(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes
) -> None:
    if await reader.readexactly(len(_GREETING)) != _GREETING:
        raise HandshakeError("the peer does not speak this wire's version")
    server_nonce = await reader.readexactly(_NONCE_BYTES)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    writer.write(nonce + _proof(secret, b"client", server_nonce, nonce))
    proof = await reader.readexactly(_PROOF_BYTES)
    if not hmac.compare_digest(proof, _proof(secret, b"server", nonce, server_nonce)):
        raise HandshakeError("the peer does not know the secret")


def handshake_as_server(peer: socket.socket, secret: bytes) -> None:
    """The server's half of the handshake on a blocking socket that has a timeout set.

    Raises:
        HandshakeError: the peer does not know the secret or hung up.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    peer.sendall(_GREETING + nonce)
    answer = bytearray()
    while len(answer) < _NONCE_BYTES + _PROOF_BYTES:
        piece = peer.recv(_NONCE_BYTES + _PROOF_BYTES - len(answer))
        if not piece:
            raise HandshakeError("the peer hung up during the handshake")
        answer += piece
    peer.sendall(_check_client(secret, nonce, bytes(answer)))


def _check_client(secret: bytes, nonce: bytes, answer: bytes) -> bytes:
    """Verify a client's answer and return the server's own proof."""
    client_nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(secret, b"client", nonce, client_nonce)):
        raise HandshakeError("the peer does not know the secret")
    return _proof(secret, b"server", client_nonce, nonce)


def _proof(secret: bytes, role: bytes, challenge: bytes, own_nonce: bytes) -> bytes:
    return hmac.digest(secret, role + challenge + own_nonce, "sha256")


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    # How the connection ended was noticed by whoever read from it.
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _set_no_delay(writer: asyncio.StreamWriter) -> None:
    peer: socket.socket = writer.get_extra_info("socket")
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
