"""Ranks as plain processes of this machine: a group of several without Ray.

Calls go through a pipe, one at a time. A rank ends when its pipe does, so none outlives whoever
started it.
"""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from blockyard.cluster.rank import Rank, RankDied
from blockyard.workers.config import Executor, WorkerConfig

__all__ = ["ProcessRank"]

LOOPBACK = "127.0.0.1"


class ProcessRank:
    """A `RankHandle` of a process started here, listening on loopback."""

    def __init__(self, name: str, make: Callable[[WorkerConfig], Executor] | None = None) -> None:
        """`make`, which must travel to another process: see `Rank`."""
        # Fresh interpreters: a fork would copy locks that other threads hold.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make), name=name, daemon=True)
        self._process.start()
        theirs.close()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    @property
    def process_id(self) -> int:
        """Of the rank's process."""
        assert self._process.pid is not None
        return self._process.pid

    async def call(self, method: str, *arguments: object) -> Any:
        """See `RankHandle`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._ask, method, arguments)

    def _ask(self, method: str, arguments: tuple[object, ...]) -> Any:
        try:
            self._pipe.send((method, arguments))
            good, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise RankDied(f"{self._process.name} has died") from error
        if not good:
            raise answer
        return answer

    def kill(self) -> None:
        """End the process at once, as the kernel would when memory runs out."""
        os.kill(self.process_id, signal.SIGKILL)
        self._process.join()

    def close(self) -> None:
        """End the process."""
        self._thread.shutdown(wait=False)
        self._pipe.close()
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, make: Callable[[WorkerConfig], Executor] | None) -> None:
    """The rank's process, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started us, who ends us
    rank = Rank(LOOPBACK, make)
    while True:
        try:
            method, arguments = pipe.recv()
        except (EOFError, OSError):
            # A step may be running in another thread; nobody waits for it any more.
            os._exit(0)
        try:
            answer = (True, getattr(rank, method)(*arguments))
        except Exception as error:
            answer = (False, error)
        pipe.send(answer)
