"""What a rank says of its steps: their results, and when nothing of them goes on any more.

Moves of blocks may outlast their step. Its result is told at once, and that the step is finished
when they have ended, in the order of steps: before the next answer, or while no plan has come.
Knows no sockets but to see whether a plan waits. Units: steps, seconds.
"""

import select
import socket
from collections import deque
from collections.abc import Callable

from blockyard.cluster.messages import Acknowledged, Executed, WorkerToEngine
from blockyard.scheduler.plan import StepResult
from blockyard.workers.config import Executor, FinishesMoves

__all__ = ["StepAnswers"]

_LOOK_SECONDS = 0.0005
"""How often it is looked whether moves have ended: a block takes some 40 us on a fast link."""


class StepAnswers:
    """The answers of one rank to one engine.

    Args:
        rank: rank 0 alone tells results.
        executor: asked which steps are finished.
        send: sends a message to the engine.
    """

    def __init__(
        self, rank: int, executor: Executor, send: Callable[[WorkerToEngine], None]
    ) -> None:
        self._rank = rank
        self._executor = executor
        self._send = send
        self._unfinished: deque[int] = deque()

    def answer(self, result: StepResult) -> None:
        """Tell of a step that was just run."""
        if result.moving:
            self._acknowledge_finished()
            self._unfinished.append(result.step)
            if self._rank == 0:
                self._send(Executed(result))
            return
        while self._unfinished:  # nothing of those before goes on either
            self._send(Acknowledged(self._unfinished.popleft()))
        self._send(Executed(result) if self._rank == 0 else Acknowledged(result.step))

    def wait_for_plan(self, engine: socket.socket) -> None:
        """Tell what is finished until all is, or until the engine has said something."""
        while self._unfinished:
            ready, _, _ = select.select([engine], [], [], _LOOK_SECONDS)
            if ready:
                return
            self._acknowledge_finished()

    def _acknowledge_finished(self) -> None:
        if not self._unfinished or not isinstance(self._executor, FinishesMoves):
            return
        finished = self._executor.finished_step
        while self._unfinished and self._unfinished[0] <= finished:
            self._send(Acknowledged(self._unfinished.popleft()))
