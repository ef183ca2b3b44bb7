"""The rank's end of moves: threads that send host blocks to other ranks, and fetch some from there.

Beside the thread that runs steps, which knows nothing of it: only host blocks are read and written
here that no plan touches meanwhile, as the engine says. It serves one engine and ends with its
connection. Units: blocks, bytes, seconds.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from blockyard.cluster.blocking_wire import receive_frame
from blockyard.cluster.handshake import handshake_as_server, new_secret
from blockyard.cluster.moves.block_route import BlockRoute, receive_take
from blockyard.cluster.moves.door_messages import (
    EngineToDoor,
    Fetch,
    Fetched,
    Give,
    Given,
    Giving,
    Leave,
    RankDoor,
    Withdraw,
)
from blockyard.cluster.moves.offered import Offered, OfferedParcels
from blockyard.cluster.wire import Codec, Endpoint, frame, tune
from blockyard.workers.host_memory import HostMemory

__all__ = ["MOST_PEERS", "PIECE_BYTES", "BlockDoor"]

logger = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20
"""At a time; a parcel that is withdrawn ends within as much."""
MOST_PEERS = 8
"""Ranks that are served at once; others are sent away, and compute again what they wanted."""
_SILENT_SECONDS = 10.0
"""A peer that asks for nothing, or takes nothing, for so long is sent away."""
_MOST_FETCHES = 4


class BlockDoor:
    """One rank's.

    Attributes:
        control: where its engine connects.
        door: where other ranks do, for those who are told.

    Args:
        memory: the host pool as it is now; None: there is none, and nothing moves.
        host: address to listen at.
    """

    def __init__(self, memory: Callable[[], HostMemory | None], host: str) -> None:
        self._memory = memory
        self._offered = OfferedParcels()
        self._routes: dict[int, BlockRoute] = {}
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._closed = False
        self._engine: socket.socket | None = None
        self._places = threading.BoundedSemaphore(MOST_PEERS)
        self._codec: Codec[EngineToDoor] = Codec(EngineToDoor)
        self._fetchers = ThreadPoolExecutor(_MOST_FETCHES, thread_name_prefix="block-fetch")
        secret, peer_secret = new_secret(), new_secret()
        control, peers = socket.create_server((host, 0)), socket.create_server((host, 0))
        self._sockets |= {control, peers}
        self.control = Endpoint(host, control.getsockname()[1], secret)
        self.door = RankDoor(host, peers.getsockname()[1], peer_secret)
        for name, run in (
            ("block-door", lambda: self._serve_engine(control, secret)),
            ("block-peers", lambda: self._serve_peers(peers, peer_secret)),
        ):
            threading.Thread(target=run, name=name, daemon=True).start()

    def close(self) -> None:
        """Hang up on everybody; returns when nothing is read or written any more. Safe twice."""
        with self._lock:
            self._closed = True
            held, self._sockets = self._sockets, set()
        for one in held:
            _end(one)
        self._offered.close()
        self._fetchers.shutdown(wait=True, cancel_futures=True)
        self._offered.wait_unread()

    # --- the engine ---------------------------------------------------------------------------

    def _serve_engine(self, listener: socket.socket, secret: bytes) -> None:
        try:
            engine = self._admit(listener, secret)
            while engine is None:
                engine = self._admit(listener, secret)
            self._engine = engine
            while (payload := receive_frame(engine)) is not None:
                self._take(self._codec.decode(payload))
        except OSError as error:
            if not self._closed:
                logger.warning("a block door ends: %s", error)
        self.close()

    def _take(self, message: EngineToDoor) -> None:
        match message:
            case Give(key, host_ids):
                self._offered.offer(key, host_ids, self._given)
            case Withdraw(key):
                self._offered.withdraw(key)
            case Fetch():
                self._later(self._fetch, message)
            case Leave(ticket):
                # Behind the fetch that may still run for it.
                self._later(self._leave, ticket)

    def _later(self, work: Callable[[Any], None], about: Any) -> None:
        try:
            self._fetchers.submit(work, about)
        except RuntimeError:
            if not self._closed:  # else it is over for everybody
                raise

    def _given(self, key: bytes, num_bytes: int) -> None:
        self._tell(Given(key, num_bytes))

    def _tell(self, message: Given | Fetched) -> None:
        # Who receives from it notices its end.
        with self._telling, contextlib.suppress(OSError):
            if self._engine is not None:
                self._engine.sendall(self._codec.encode(message))

    # --- what comes ---------------------------------------------------------------------------

    def _fetch(self, asked: Fetch) -> None:
        try:
            fetched = self._fetch_some(asked)
        except Exception as error:
            # What came before was written whole; the rest is computed again.
            expected = isinstance(error, OSError)  # the other group has gone, or is too slow
            logger.warning(
                "blocks of another group cannot be fetched: %s", error, exc_info=not expected
            )
            fetched = Fetched(asked.ticket, 0, 0, 0.0, 0.0, f"{type(error).__name__}: {error}")
        if fetched.error:
            self._leave(asked.ticket)
        self._tell(fetched)

    def _fetch_some(self, asked: Fetch) -> Fetched:
        memory = self._memory()
        if memory is None or not memory.layout:
            return Fetched(asked.ticket, 0, 0, 0.0, 0.0, "no blocks can be taken in here")
        deadline = time.monotonic() + asked.seconds
        route = self._routes.get(asked.ticket)
        if route is None:
            route = BlockRoute(asked.source, deadline)
            self._routes[asked.ticket] = route
            if not self._keep(route.peer):
                return Fetched(asked.ticket, 0, 0, 0.0, 0.0, "the door is closed")
        return route.fetch(asked, memory, deadline)

    def _leave(self, ticket: int) -> None:
        route = self._routes.pop(ticket, None)
        if route is not None:
            self._drop(route.peer)

    # --- what goes ----------------------------------------------------------------------------

    def _serve_peers(self, listener: socket.socket, secret: bytes) -> None:
        while not self._closed:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            if not self._places.acquire(blocking=False) or not self._keep(peer):
                _end(peer)
                continue
            serve = threading.Thread(
                target=self._serve_peer, args=(peer, secret), name="block-peer", daemon=True
            )
            serve.start()

    def _serve_peer(self, peer: socket.socket, secret: bytes) -> None:
        named: set[bytes] = set()
        try:
            tune(peer)
            handshake_as_server(peer, secret)
            peer.settimeout(_SILENT_SECONDS)
            while (take := receive_take(peer)) is not None:
                offered = self._offered.find(take.key, min(take.seconds, _SILENT_SECONDS))
                memory = self._memory()
                if offered is None or memory is None:
                    peer.sendall(_refusal("these blocks are not to be had"))
                    continue
                named.add(take.key)
                if take.layout != memory.layout:
                    reason = f"blocks are laid out otherwise: {memory.layout}"
                    peer.sendall(_refusal(reason))
                    continue
                with self._offered.reading(offered, peer):
                    self._send(peer, offered, memory, take.first, take.count)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            if not self._closed:
                logger.info("a rank that fetched blocks has gone: %s", error or "it was silent")
        finally:
            self._drop(peer)
            self._places.release()
            # Whoever hangs up wants nothing more of what it has named.
            for key in named:
                self._offered.withdraw(key)

    def _send(
        self, peer: socket.socket, offered: Offered, memory: HostMemory, first: int, count: int
    ) -> None:
        host_ids = offered.host_ids[first : first + count]
        if len(host_ids) != count or first < 0:
            peer.sendall(_refusal("the parcel has no such blocks"))
            return
        peer.sendall(frame(msgspec.msgpack.encode(Giving())))
        for start, length in offered.runs(first, count):
            content = memory.run(start, length)
            for begin in range(0, len(content), PIECE_BYTES):
                piece = content[begin : begin + PIECE_BYTES]
                peer.sendall(piece)
                offered.num_bytes += len(piece)

    # --- sockets ------------------------------------------------------------------------------

    def _admit(self, listener: socket.socket, secret: bytes) -> socket.socket | None:
        peer, _ = listener.accept()
        try:
            tune(peer)
            handshake_as_server(peer, secret)
        except OSError as error:
            logger.warning("a block door sent a peer away: %s", error)
            peer.close()
            return None
        if not self._keep(peer):
            raise ConnectionError("the door is closed")
        return peer

    def _keep(self, one: socket.socket) -> bool:
        """Have `close` end a socket too; False when it is closed already."""
        with self._lock:
            if not self._closed:
                self._sockets.add(one)
        if self._closed:
            _end(one)
        return not self._closed

    def _drop(self, one: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(one)
        _end(one)


def _refusal(reason: str) -> bytes:
    return frame(msgspec.msgpack.encode(Giving(reason)))


def _end(one: socket.socket) -> None:
    # shutdown() wakes whoever sleeps in accept(), recv() or send(); close() would not.
    with contextlib.suppress(OSError):  # it may have ended already
        one.shutdown(socket.SHUT_RDWR)
    one.close()
