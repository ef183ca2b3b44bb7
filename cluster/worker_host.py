"""The worker's end of the wire: one thread that loads, listens, and runs plans as they come.

Blocking sockets on purpose: an idle worker sleeps in `recv`. Everything the executor does happens
in that one thread, so that torch keeps a single pool of helper threads. Knows no Ray.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from blockyard.cluster.messages import (
    Acknowledged,
    Executed,
    ToWorker,
    WorkerFailed,
)
from blockyard.cluster.wire import (
    HANDSHAKE_SECONDS,
    MAX_FRAME_BYTES,
    Codec,
    Endpoint,
    WireError,
    handshake_as_server,
    new_secret,
)
from blockyard.workers.config import Executor, WorkerProfile

__all__ = ["WorkerHost"]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class WorkerHost:
    """Hosts one rank. Call `load`, `allocate`, `listen` in this order, then leave it alone."""

    def __init__(self, make_executor: Callable[[], Executor], rank: int) -> None:
        self._make_executor = make_executor
        self._rank = rank
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"rank-{rank}")
        self._executor: Executor | None = None
        self._listener: socket.socket | None = None
        self._closed = threading.Event()

    def load(self) -> WorkerProfile:
        """Make the executor, load its model, and tell what was measured."""

        def work() -> WorkerProfile:
            self._executor = self._make_executor()
            return self._executor.load()

        return self._in_thread(work)

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Make the pools."""
        self._in_thread(lambda: self._loaded().allocate(num_blocks, num_host_blocks))

    def listen(self, host: str) -> Endpoint:
        """Start to serve one engine after another; the kernel picks the port."""
        executor = self._loaded()
        secret = new_secret()
        self._listener = socket.create_server((host, 0))
        port: int = self._listener.getsockname()[1]
        self._thread.submit(self._serve, self._listener, executor, secret)
        return Endpoint(host, port, secret)

    def close(self) -> None:
        """Stop listening; the thread ends after the step in flight."""
        self._closed.set()
        if self._listener is not None:
            # shutdown() wakes the accept() that the thread may be sleeping in; close() would not.
            with contextlib.suppress(OSError):  # a lost rank has closed it already
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        self._thread.shutdown(wait=False)

    def _loaded(self) -> Executor:
        if self._executor is None:
            raise RuntimeError("load() comes first")
        return self._executor

    def _in_thread(self, work: Callable[[], Result]) -> Result:
        return self._thread.submit(work).result()

    def _serve(self, listener: socket.socket, executor: Executor, secret: bytes) -> None:
        codec: Codec[ToWorker] = Codec(ToWorker)
        while not self._closed.is_set():
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                try:
                    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    peer.settimeout(HANDSHAKE_SECONDS)
                    handshake_as_server(peer, secret)
                    peer.settimeout(None)
                    self._serve_engine(peer, executor, codec)
                except OSError as error:
                    logger.warning("rank %d: an engine's connection ended: %s", self._rank, error)
                except Exception:
                    # What the device or the pool holds is unknown now: this rank serves no more.
                    logger.exception("rank %d is lost", self._rank)
                    listener.close()
                    return

    def _serve_engine(
        self, peer: socket.socket, executor: Executor, codec: Codec[ToWorker]
    ) -> None:
        while (payload := _receive_frame(peer)) is not None:
            plan = codec.decode(payload).plan
            try:
                result = executor.execute(plan)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                peer.sendall(codec.encode(WorkerFailed(plan.step, reason)))
                raise
            answer = Executed(result) if self._rank == 0 else Acknowledged(result.step)
            peer.sendall(codec.encode(answer))


def _receive_frame(peer: socket.socket) -> bytes | None:
    header = _receive_exactly(peer, 4)
    if header is None:
        return None
    length = int.from_bytes(header, "big")
    if length > MAX_FRAME_BYTES:
        raise WireError(f"peer announced a frame of {length} bytes, over the limit")
    return _receive_exactly(peer, length)


def _receive_exactly(peer: socket.socket, count: int) -> bytes | None:
    """Exactly `count` bytes, or None when the peer hung up."""
    received = bytearray(count)
    view = memoryview(received)
    filled = 0
    while filled < count:
        piece = peer.recv_into(view[filled:])
        if piece == 0:
            return None
        filled += piece
    return bytes(received)
