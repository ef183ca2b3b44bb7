"""The blocking half of the handshake, as a worker does it; the other half is in test_wire.py."""

import asyncio
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from blockyard.cluster import handshake
from blockyard.cluster.handshake import (
    HandshakeError,
    handshake_as_server,
    new_secret,
    prove_as_client,
)

SECRET = new_secret()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


async def prove(peer: socket.socket, secret: bytes) -> None:
    reader, writer = await asyncio.open_connection(sock=peer)
    try:
        await prove_as_client(reader, writer, secret)
    finally:
        writer.close()
        await writer.wait_closed()


def test_both_sides_accept_the_same_secret(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    with ThreadPoolExecutor(1) as thread:
        server = thread.submit(handshake_as_server, ours, SECRET)
        asyncio.run(prove(theirs, SECRET))
        server.result(timeout=20)
    assert ours.gettimeout() is None  # the worker may sleep as long as nobody speaks


def test_a_wrong_secret_is_refused_and_learns_no_proof(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    theirs.sendall(bytes(64))
    with pytest.raises(HandshakeError, match="does not know the secret"):
        handshake_as_server(ours, SECRET)
    ours.close()
    greeting = theirs.recv(1000)
    assert len(greeting) == 48 and theirs.recv(1000) == b""


def test_a_peer_that_hangs_up_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(bytes(63))
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(HandshakeError, match="hung up"):
        handshake_as_server(ours, SECRET)


def test_the_time_limit_is_for_all_pieces_together(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair
    now = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    # Byte after byte comes in good time: one a second, for a minute.
    monkeypatch.setattr(handshake, "_ANSWER_BYTES", 1000)
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 3.0)
    for _ in range(100):
        theirs.sendall(b"x")
    limits: list[float | None] = []

    class Dripping(socket.socket):
        def recv(self, count: int, flags: int = 0) -> bytes:
            limits.append(self.gettimeout())
            return super().recv(1)

    dripping = Dripping(fileno=ours.detach())
    with dripping, pytest.raises(TimeoutError):
        handshake_as_server(dripping, SECRET)
    assert len(limits) < 105
    assert limits[0] == 2.0 and limits[-1] == 0.001
