"""The worker's end of the wire: one thread that loads, listens, and runs plans as they come.

Blocking sockets on purpose: an idle worker sleeps in `recv`. Everything the executor does happens
in that one thread, so that torch keeps a single pool of helper threads. It serves one engine in
its life: what an engine leaves behind in the executor would be wrong for another. Knows no Ray.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from blockyard.cluster.blocking_wire import receive_frame
from blockyard.cluster.handshake import handshake_as_server, new_secret
from blockyard.cluster.messages import ToWorker, WorkerFailed
from blockyard.cluster.moves.block_door import BlockDoor
from blockyard.cluster.step_answers import StepAnswers
from blockyard.cluster.wire import Codec, Endpoint, tune
from blockyard.workers.adapter_description import AdapterDescription, AdapterRefused
from blockyard.workers.config import Executor, TakesAdapters, WorkerProfile
from blockyard.workers.host_memory import HostMemory, SharesHostMemory

__all__ = ["WorkerHost"]

logger = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 2.0
"""How long a failed rank stays for the engine to read why."""

Result = TypeVar("Result")


class WorkerHost:
    """Hosts one rank. Call `load`, `allocate`, `listen` in this order, then leave it alone."""

    def __init__(self, make_executor: Callable[[], Executor], rank: int) -> None:
        self._make_executor = make_executor
        self._rank = rank
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"rank-{rank}")
        self._executor: Executor | None = None
        self._sockets: list[socket.socket] = []
        self._door: BlockDoor | None = None
        self._closed = threading.Event()

    def load(self) -> WorkerProfile:
        """Make the executor, load its model, and tell what was measured."""

        def work() -> WorkerProfile:
            self._executor = self._make_executor()
            return self._executor.load()

        return self._in_thread(work)

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Make the pools; the door of those before is closed."""
        self._close_door()
        self._in_thread(lambda: self._loaded().allocate(num_blocks, num_host_blocks))

    def load_adapter(self, adapter: AdapterDescription) -> str:
        """Have an adapter ready; why it cannot be, or nothing.

        Not in the one thread, which runs steps: those go on meanwhile.
        """
        executor = self._loaded()
        if not isinstance(executor, TakesAdapters):
            return "these workers take no adapters"
        try:
            executor.load_adapter(adapter)
        except AdapterRefused as refusal:
            return str(refusal)
        return ""

    def drop_adapter(self, adapter_id: str) -> None:
        """Forget an adapter that no step uses any more."""
        executor = self._loaded()
        if isinstance(executor, TakesAdapters):
            executor.drop_adapter(adapter_id)

    def listen(self, host: str) -> Endpoint:
        """Wait for the engine and serve it to the end; the kernel picks the port."""
        executor = self._loaded()
        secret = new_secret()
        listener = socket.create_server((host, 0))
        self._sockets.append(listener)
        port: int = listener.getsockname()[1]
        self._thread.submit(self._serve, listener, executor, secret)
        return Endpoint(host, port, secret)

    def open_door(self, host: str) -> BlockDoor:
        """Let the engine have blocks fetched from other groups, and given to them."""
        self._close_door()
        self._door = BlockDoor(self._host_memory, host)
        return self._door

    def close(self) -> None:
        """Hang up; the thread ends after the step in flight."""
        self._closed.set()
        self._close_door()
        for held in self._sockets:
            # shutdown() wakes whoever sleeps in accept() or recv(); close() would not.
            with contextlib.suppress(OSError):  # it may have ended already
                held.shutdown(socket.SHUT_RDWR)
        self._thread.shutdown(wait=False)

    def wait_ended(self) -> None:
        """Wait for the thread, which ends after `close`; then nothing holds the executor."""
        self._thread.shutdown(wait=True)
        self._executor = None

    def _host_memory(self) -> HostMemory | None:
        executor = self._executor
        return executor.host_memory() if isinstance(executor, SharesHostMemory) else None

    def _close_door(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            door.close()

    def _loaded(self) -> Executor:
        if self._executor is None:
            raise RuntimeError("load() comes first")
        return self._executor

    def _in_thread(self, work: Callable[[], Result]) -> Result:
        return self._thread.submit(work).result()

    def _serve(self, listener: socket.socket, executor: Executor, secret: bytes) -> None:
        """Serve the first peer that proves the secret."""
        try:
            with listener:
                engine = self._accept(listener, secret)
            with engine:
                self._run_plans(engine, executor)
        except Exception as error:
            if not self._closed.is_set():
                logger.error("rank %d serves no more: %r", self._rank, error)

    def _accept(self, listener: socket.socket, secret: bytes) -> socket.socket:
        while True:
            peer, _ = listener.accept()
            try:
                tune(peer)
                handshake_as_server(peer, secret)
            except OSError as error:
                logger.warning("rank %d sent a peer away: %s", self._rank, error)
                peer.close()
                continue
            self._sockets.append(peer)
            if self._closed.is_set():
                peer.shutdown(socket.SHUT_RDWR)
            return peer

    def _run_plans(self, engine: socket.socket, executor: Executor) -> None:
        """Run plans until the engine hangs up, or until the first failure: then nobody knows what
        the device or the pool holds."""
        codec: Codec[ToWorker] = Codec(ToWorker)
        answers = StepAnswers(
            self._rank, executor, lambda answer: engine.sendall(codec.encode(answer))
        )
        while (payload := receive_frame(engine)) is not None:
            plan = codec.decode(payload).plan
            try:
                result = executor.execute(plan)
            except Exception as error:
                logger.exception("rank %d failed in step %d", self._rank, plan.step)
                reason = f"{type(error).__name__}: {error}"
                engine.sendall(codec.encode(WorkerFailed(plan.step, reason)))
                _let_it_be_read(engine)
                return
            answers.answer(result)
            answers.wait_for_plan(engine)


def _let_it_be_read(engine: socket.socket) -> None:
    """Take what the engine still sends until it hangs up.

    Closing with plans unread would reset the connection, and a reset may overtake our last words.
    """
    engine.shutdown(socket.SHUT_WR)
    engine.settimeout(LAST_WORDS_SECONDS)
    with contextlib.suppress(OSError):  # it took too long, or has reset the connection itself
        while engine.recv(65536):
            pass
