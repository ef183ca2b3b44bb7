"""Ranks over the wire: sends each plan to every rank, takes tokens from rank 0, acks from all.

Knows nothing of requests or blocks. A rank whose connection ends, that says it failed, or that
answers what it was not asked, loses the whole group: the step in flight raises, and so does every
later one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from blockyard.cluster.group import GroupLost
from blockyard.cluster.messages import (
    Acknowledged,
    Execute,
    Executed,
    WorkerFailed,
    WorkerToEngine,
)
from blockyard.cluster.wire import Codec, Connection, Endpoint, WireError, connect
from blockyard.scheduler.plan import StepPlan, StepResult

__all__ = ["WorkerGroup"]


class WorkerGroup:
    """A group whose ranks are other processes. Make it with `WorkerGroup.connect`."""

    def __init__(
        self,
        codec: Codec[WorkerToEngine],
        connections: Sequence[Connection[WorkerToEngine]],
        weight_version: str = "",
    ) -> None:
        self.weight_version = weight_version
        self._codec = codec
        self._connections = connections
        self._acknowledged = [0] * len(connections)
        self._answered = 0
        self._callback: Callable[[], None] = lambda: None
        self._pending: deque[asyncio.Future[StepResult]] = deque()
        self._sent_step = 0
        self._lost: str | None = None
        self._readers = [
            asyncio.create_task(self._read(rank, connection), name=f"rank-{rank}")
            for rank, connection in enumerate(connections)
        ]

    @classmethod
    async def connect(
        cls, endpoints: Sequence[Endpoint], weight_version: str = ""
    ) -> "WorkerGroup":
        """Connect to every rank, in rank order; all have loaded weights of this version.

        Raises:
            OSError: a rank is not there, or is not the one it claims to be.
        """
        codec: Codec[WorkerToEngine] = Codec(WorkerToEngine)
        connections: list[Connection[WorkerToEngine]] = []
        try:
            for endpoint in endpoints:
                connections.append(await connect(endpoint, codec))
        except BaseException:
            for connection in connections:
                await connection.close()
            raise
        return cls(codec, connections, weight_version)

    @property
    def acknowledged_step(self) -> int:
        """Newest step that every rank has finished."""
        return min(self._acknowledged)

    @property
    def lost(self) -> str | None:
        """Which rank was lost first and why, or None while all are there."""
        return self._lost

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when `acknowledged_step` has grown, and when a rank is lost."""
        self._callback = callback

    async def execute(self, plan: StepPlan) -> StepResult:
        """Send the plan to all ranks; rank 0's result ends the call.

        The next call need not wait for that: ranks run plans in the order in which they come.

        Raises:
            GroupLost: a rank is gone.
        """
        if self._lost is not None:
            raise GroupLost(self._lost)
        encoded = self._codec.encode(Execute(plan))
        self._sent_step = plan.step
        pending: asyncio.Future[StepResult] = asyncio.get_running_loop().create_future()
        self._pending.append(pending)
        try:
            for connection in self._connections:
                connection.post_frame(encoded)
            result = await pending
            # A rank that is behind must not pile up plans here without end.
            for connection in self._connections:
                await connection.drain()
        except ConnectionError as error:
            raise GroupLost(self._lost or f"a rank's connection broke: {error}") from error
        return result

    def lose(self, reason: str) -> None:
        """Somebody knows that a rank is lost although its connection says nothing."""
        self._lose(reason)

    def drop_wire(self, rank: int) -> None:
        """Break the connection to a rank."""
        self._connections[rank].abort()

    def hold_wire(self, rank: int, seconds: float) -> None:
        """Hear nothing from a rank for so long."""
        self._connections[rank].hold(seconds)

    async def close(self) -> None:
        """Close every connection, which ends the workers' service."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        await asyncio.gather(*(connection.close() for connection in self._connections))

    async def _read(self, rank: int, connection: Connection[WorkerToEngine]) -> None:
        try:
            while (message := await connection.receive()) is not None:
                self._take(rank, message)
            self._lose(f"rank {rank} closed its connection")
        except WireError as error:
            self._lose(f"rank {rank} {error}")

    def _take(self, rank: int, message: WorkerToEngine) -> None:
        match message:
            case Executed(result) if rank == 0:
                if result.moving:
                    self._note_answered(result.step)
                else:
                    self._acknowledge(rank, result.step)
                    self._answered = result.step
                # Results come in the order of plans. Who was cancelled meanwhile wants none.
                pending = self._pending.popleft()
                if not pending.done():
                    pending.set_result(result)
            case Acknowledged(step) if rank != 0 or step <= self._answered:
                self._acknowledge(rank, step)
            case WorkerFailed(step, reason):
                raise WireError(f"failed in step {step}: {reason}")
            case _:
                raise WireError(f"sent {type(message).__name__}, which is not its to send")

    def _note_answered(self, step: int) -> None:
        """Note a result of a step that rank 0 has not finished."""
        if step != self._answered + 1:
            raise WireError(f"answered step {step} after {self._answered}")
        self._answered = step

    def _acknowledge(self, rank: int, step: int) -> None:
        """Note that a rank has finished a step; a wrong number would open fences too early."""
        if step != self._acknowledged[rank] + 1 or step > self._sent_step:
            raise WireError(
                f"acknowledged step {step} after {self._acknowledged[rank]}; "
                f"the newest sent is {self._sent_step}"
            )
        before = self.acknowledged_step
        self._acknowledged[rank] = step
        if self.acknowledged_step > before:
            self._callback()

    def _lose(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        for pending in self._pending:
            if not pending.done():
                pending.set_exception(GroupLost(reason))
        self._callback()
