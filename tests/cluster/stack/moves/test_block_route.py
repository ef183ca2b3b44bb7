"""A rank's connection to another's door: how long it fetches."""

import contextlib
import itertools
import socket
import threading
from types import SimpleNamespace

import msgspec
import pytest

from blockyard.cluster.handshake import handshake_as_server, new_secret
from blockyard.cluster.moves import block_route
from blockyard.cluster.moves.block_route import BlockRoute, receive_take
from blockyard.cluster.moves.door_messages import Fetch, Giving, RankDoor
from blockyard.cluster.wire import frame
from blockyard.workers.host_memory import HostMemory

pytestmark = pytest.mark.timeout(60)

BLOCK_BYTES, BLOCKS = 64, 64


def test_bytes_that_come_one_by_one_are_taken_no_longer_than_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = new_secret()
    listener = socket.create_server(("127.0.0.1", 0))

    def give() -> None:
        peer, _ = listener.accept()
        with listener, peer:
            handshake_as_server(peer, secret)
            assert receive_take(peer) is not None
            peer.sendall(
                frame(msgspec.msgpack.encode(Giving())) + bytes([7]) * BLOCK_BYTES * BLOCKS
            )
            with contextlib.suppress(ConnectionResetError):  # what came too late is left unread
                receive_take(peer)

    giver = threading.Thread(target=give)
    giver.start()
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(seconds)))
    monkeypatch.setattr(block_route, "time", clock)
    source = RankDoor("127.0.0.1", listener.getsockname()[1], secret)
    route = BlockRoute(source, 1000.0)
    content = memoryview(bytearray(BLOCK_BYTES * BLOCKS))
    # Every other block, so that each comes by itself.
    host_ids = tuple(range(0, BLOCKS, 2))
    asked = Fetch(1, source, b"key", 0, host_ids, 20.0)
    deadline = clock.monotonic() + 20.0
    told = route.fetch(asked, HostMemory("layout", BLOCK_BYTES, content), deadline)
    assert "the time for it is over" in told.error
    assert 0 < told.blocks < len(host_ids)
    assert content[:BLOCK_BYTES] == bytes([7]) * BLOCK_BYTES
    route.peer.close()
    giver.join()
