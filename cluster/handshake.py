"""How two of our processes meet: both prove that they know a listener's secret, showing it to none.

Each side answers the other's random challenge with a keyed digest. Until that is done at most 96
bytes are read and nothing is decoded. For event loops, and for a worker's blocking socket. Units:
seconds, bytes.
"""

import asyncio
import hashlib
import hmac
import secrets
import socket
import time

__all__ = [
    "HANDSHAKE_SECONDS",
    "HandshakeError",
    "handshake_as_client",
    "handshake_as_server",
    "new_secret",
    "prove_as_client",
    "prove_as_server",
]

HANDSHAKE_SECONDS = 5.0
"""A peer that takes longer is sent away."""

_GREETING = b"blockyard-wire-1"
_NONCE_BYTES = 32
_ANSWER_BYTES = _NONCE_BYTES + hashlib.sha256().digest_size


class HandshakeError(ConnectionError):
    """The peer could not prove that it knows the secret, or did not speak in time."""


def new_secret() -> bytes:
    """A fresh random secret for one listener."""
    return secrets.token_bytes(32)


async def prove_as_server(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes
) -> None:
    """The server's half; the caller limits the time.

    Raises:
        HandshakeError: the peer does not know the secret, or hung up.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    writer.write(_GREETING + nonce)
    writer.write(_check_client(secret, nonce, await _read(reader, _ANSWER_BYTES)))


async def prove_as_client(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes
) -> None:
    """The client's half; the caller limits the time.

    Raises:
        HandshakeError: the peer does not know the secret, speaks otherwise, or hung up.
    """
    if await _read(reader, len(_GREETING)) != _GREETING:
        raise HandshakeError("the peer does not speak this wire's version")
    server_nonce = await _read(reader, _NONCE_BYTES)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    writer.write(nonce + _proof(secret, b"client", server_nonce, nonce))
    proof = await _read(reader, _ANSWER_BYTES - _NONCE_BYTES)
    if not hmac.compare_digest(proof, _proof(secret, b"server", nonce, server_nonce)):
        raise HandshakeError("the peer does not know the secret")


def handshake_as_server(peer: socket.socket, secret: bytes) -> None:
    """The server's half on a blocking socket, which is left without a time limit.

    Raises:
        HandshakeError: the peer does not know the secret, or hung up.
        TimeoutError: it took longer than `HANDSHAKE_SECONDS` over all.
    """
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    nonce = secrets.token_bytes(_NONCE_BYTES)
    peer.settimeout(HANDSHAKE_SECONDS)
    peer.sendall(_GREETING + nonce)
    answer = _receive(peer, _ANSWER_BYTES, deadline)
    peer.sendall(_check_client(secret, nonce, answer))
    peer.settimeout(None)


def handshake_as_client(peer: socket.socket, secret: bytes, seconds: float) -> None:
    """The client's half on a blocking socket, which is left with the time limit of its last read.

    Raises:
        HandshakeError: the peer does not know the secret, speaks otherwise, or hung up.
        TimeoutError: it took longer than `seconds` over all.
    """
    deadline = time.monotonic() + seconds
    if _receive(peer, len(_GREETING), deadline) != _GREETING:
        raise HandshakeError("the peer does not speak this wire's version")
    server_nonce = _receive(peer, _NONCE_BYTES, deadline)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    peer.sendall(nonce + _proof(secret, b"client", server_nonce, nonce))
    proof = _receive(peer, _ANSWER_BYTES - _NONCE_BYTES, deadline)
    if not hmac.compare_digest(proof, _proof(secret, b"server", nonce, server_nonce)):
        raise HandshakeError("the peer does not know the secret")


def _receive(peer: socket.socket, count: int, deadline: float) -> bytes:
    answer = b""
    while len(answer) < count:
        # A limit for each piece alone would let a peer that drips bytes take for ever.
        peer.settimeout(max(deadline - time.monotonic(), 0.001))
        piece = peer.recv(count - len(answer))
        if not piece:
            raise HandshakeError("the peer hung up during the handshake")
        answer += piece
    return answer


async def _read(reader: asyncio.StreamReader, count: int) -> bytes:
    try:
        return await reader.readexactly(count)
    except (asyncio.IncompleteReadError, ConnectionResetError) as error:
        raise HandshakeError("the peer hung up during the handshake") from error


def _check_client(secret: bytes, nonce: bytes, answer: bytes) -> bytes:
    """Verify a client's answer and return the server's own proof."""
    client_nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(secret, b"client", nonce, client_nonce)):
        raise HandshakeError("the peer does not know the secret")
    return _proof(secret, b"server", client_nonce, nonce)


def _proof(secret: bytes, role: bytes, challenge: bytes, own_nonce: bytes) -> bytes:
    return hmac.digest(secret, role + challenge + own_nonce, "sha256")
