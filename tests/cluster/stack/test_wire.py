import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec
import pytest

from blockyard.cluster import wire
from blockyard.cluster.handshake import HandshakeError, new_secret
from blockyard.cluster.wire import (
    MAX_FRAME_BYTES,
    Codec,
    Connection,
    Endpoint,
    Listener,
    WireError,
    connect,
    frame,
    listen,
)


class Note(msgspec.Struct, frozen=True, tag=True):
    text: str


class Echo:
    """A peer that answers each note with itself, and remembers how conversations ended."""

    def __init__(self) -> None:
        self.handled = 0
        self.echoed = 0
        self.endings: asyncio.Queue[str] = asyncio.Queue()

    async def serve(self, connection: Connection[Note]) -> None:
        self.handled += 1
        try:
            while (note := await connection.receive()) is not None:
                connection.post(note)
                self.echoed += 1
            self.endings.put_nowait("hung up")
        except WireError as error:
            self.endings.put_nowait(str(error))


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Echo, Listener]]:
    peer = Echo()
    listener = await listen(Codec(Note), peer.serve)
    yield peer, listener
    await listener.close()


async def test_messages_come_back_in_order(echo: tuple[Echo, Listener]) -> None:
    connection: Connection[Note] = await connect(echo[1].endpoint, Codec(Note))
    for number in range(100):
        connection.post(Note(f"note {number}"))
    for number in range(100):
        assert await connection.receive() == Note(f"note {number}")
    await connection.close()
    assert await echo[0].endings.get() == "hung up"


async def test_a_large_frame_survives(echo: tuple[Echo, Listener]) -> None:
    connection: Connection[Note] = await connect(echo[1].endpoint, Codec(Note))
    text = "x" * 3_000_000
    connection.post(Note(text))
    received = await connection.receive()
    assert received is not None and received.text == text
    await connection.close()


async def test_a_wrong_secret_is_refused_before_the_handler_runs(
    echo: tuple[Echo, Listener],
) -> None:
    peer, listener = echo
    with pytest.raises(HandshakeError):
        await connect(replace(listener.endpoint, secret=new_secret()), Codec(Note))
    assert peer.handled == 0


@pytest.mark.parametrize(
    ("greeting", "proof", "said"),
    [
        (b"blockyard-wire-1" + b"n" * 32, b"p" * 32, "does not know the secret"),
        (b"blockyard-wire-1" + b"n" * 32, b"p" * 7, "hung up"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", b"", "version"),
        (b"", b"", "hung up"),
    ],
)
async def test_the_client_refuses_who_cannot_prove_the_secret(
    greeting: bytes, proof: bytes, said: str
) -> None:
    closed = asyncio.Event()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        if greeting.startswith(b"blockyard"):
            await reader.readexactly(64)
            writer.write(proof)
        writer.write_eof()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(impostor, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    with pytest.raises(HandshakeError, match=said):
        await connect(Endpoint(host, port, new_secret()), Codec(Note))
    await closed.wait()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (frame(msgspec.msgpack.encode({"type": "Other"})), "not for this channel"),
        (frame(b"\xc1\xff"), "not for this channel"),
        (struct.pack(">I", MAX_FRAME_BYTES + 1), "over the limit"),
    ],
)
async def test_what_does_not_belong_ends_the_connection(
    echo: tuple[Echo, Listener], sent: bytes, said: str
) -> None:
    peer, listener = echo
    connection: Connection[Note] = await connect(listener.endpoint, Codec(Note))
    connection.post_frame(sent)
    assert await connection.receive() is None
    assert said in await peer.endings.get()
    await connection.close()


async def test_a_peer_that_dies_in_mid_frame_is_noticed(echo: tuple[Echo, Listener]) -> None:
    peer, listener = echo
    connection: Connection[Note] = await connect(listener.endpoint, Codec(Note))
    connection.post_frame(struct.pack(">I", 100) + b"half")
    await connection.close()
    assert await peer.endings.get() == "hung up"


async def test_closing_does_not_wait_for_a_peer_that_reads_no_more(
    echo: tuple[Echo, Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "CLOSE_SECONDS", 0.05)
    peer, listener = echo
    connection: Connection[Note] = await connect(listener.endpoint, Codec(Note))
    # More than the kernel's buffers hold comes back, and nobody takes it.
    for _ in range(8):
        connection.post(Note("x" * 4_000_000))
    async with asyncio.timeout(20):
        while peer.echoed < 8:
            await asyncio.sleep(0.001)
        await listener.close()
        await connection.close()
        await connection.close()


async def test_closing_can_be_given_up_and_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = socket.create_server(("127.0.0.1", 0))
    with blocked:
        reader, writer = await asyncio.open_connection(*blocked.getsockname())
        connection: Connection[Note] = Connection(reader, writer, Codec(Note))
        connection.post(Note("x" * 30_000_000))  # nobody takes it
        closing = asyncio.create_task(connection.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        monkeypatch.setattr(wire, "CLOSE_SECONDS", 0.05)
        async with asyncio.timeout(20):
            await connection.close()


async def test_a_stranger_who_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_SECONDS", 0.05)
    peer = Echo()
    listener = await listen(Codec(Note), peer.serve)
    end = listener.endpoint
    reader, writer = await asyncio.open_connection(end.host, end.port)
    async with asyncio.timeout(20):
        assert len(await reader.read()) == 48  # the greeting, and then the end
    assert peer.handled == 0
    writer.close()
    await writer.wait_closed()
    await listener.close()


# In one of these turns asyncio itself forgets the socket it has just accepted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("turns", range(12))
async def test_a_listener_that_closes_lets_nobody_in_by_the_back_door(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_SECONDS", 0.3)
    peer = Echo()
    listener = await listen(Codec(Note), peer.serve)
    codec: Codec[Note] = Codec(Note)
    connecting = asyncio.create_task(connect(listener.endpoint, codec))
    for _ in range(turns):  # somewhere between the first packet and the handler
        await asyncio.sleep(0)
    await listener.close()
    async with asyncio.timeout(20):
        try:
            connection = await connecting
        except OSError:
            return
        connection.post(Note("is anybody there?"))
        assert await connection.receive() is None
        await connection.close()


async def test_what_was_posted_before_closing_arrives(echo: tuple[Echo, Listener]) -> None:
    _, listener = echo
    connection: Connection[Note] = await connect(listener.endpoint, Codec(Note))
    connection.post(Note("x" * 3_000_000))
    assert await connection.receive() is not None
    await listener.close()
    assert await connection.receive() is None
    await connection.close()


async def test_an_aborted_connection_ends_for_both(echo: tuple[Echo, Listener]) -> None:
    peer, listener = echo
    connection: Connection[Note] = await connect(listener.endpoint, Codec(Note))
    waiting = asyncio.create_task(connection.receive())
    await asyncio.sleep(0)
    connection.abort()
    assert await waiting is None
    assert await peer.endings.get() == "hung up"
    await connection.close()


async def test_a_vanished_machine_is_noticed_and_messages_are_not_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuned: list[socket.socket] = []
    tune = wire.tune

    def note(peer: socket.socket) -> None:
        tune(peer)
        tuned.append(peer)

    monkeypatch.setattr(wire, "tune", note)
    listener = await listen(Codec(Note), Echo().serve)
    connection: Connection[Note] = await connect(listener.endpoint, Codec(Note))
    connection.post(Note("hello"))
    assert await connection.receive() == Note("hello")
    assert len(tuned) == 2  # both ends
    for peer in tuned:
        assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 30
        assert 0 < peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000
    await connection.close()
    await listener.close()


async def test_a_silent_stranger_does_not_hold_up_others(echo: tuple[Echo, Listener]) -> None:
    _, listener = echo
    with socket.create_connection((listener.endpoint.host, listener.endpoint.port)):
        connection: Connection[Note] = await connect(listener.endpoint, Codec(Note))
        connection.post(Note("still here"))
        assert await connection.receive() == Note("still here")
        await connection.close()


def test_a_frame_over_the_limit_is_not_sent() -> None:
    with pytest.raises(WireError, match="over the limit"):
        frame(bytes(MAX_FRAME_BYTES + 1))


def test_an_endpoint_does_not_show_its_secret() -> None:
    secret = new_secret()
    shown = repr(Endpoint("127.0.0.1", 1, secret))
    assert repr(secret) not in shown and secret.hex() not in shown
