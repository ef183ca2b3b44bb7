"""Ranks over the wire: sends each plan to every rank, takes tokens from rank 0, acks from all.

Knows nothing of requests or blocks. A rank whose connection ends, or that says it failed, loses
the whole group: the step in flight raises, and so does every later one.
"""

import asyncio
from collections.abc import Callable, Sequence

from blockyard.cluster.engine import GroupLost
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
    ) -> None:
        self._codec = codec
        self._connections = connections
        self._acknowledged = [0] * len(connections)
        self._callback: Callable[[], None] = lambda: None
        self._pending: asyncio.Future[StepResult] | None = None
        self._pending_step = 0
        self._lost: GroupLost | None = None
        self._readers = [
            asyncio.create_task(self._read(rank, connection), name=f"rank-{rank}")
            for rank, connection in enumerate(connections)
        ]

    @classmethod
    async def connect(cls, endpoints: Sequence[Endpoint]) -> "WorkerGroup":
        """Connect to every rank, in rank order.

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
        return cls(codec, connections)

    @property
    def acknowledged_step(self) -> int:
        """Newest step that every rank has finished."""
        return min(self._acknowledged)

    def on_acknowledge(self, callback: Callable[[], None]) -> None:
        """Have `callback` called whenever `acknowledged_step` grows."""
        self._callback = callback

    async def execute(self, plan: StepPlan) -> StepResult:
        """Send the plan to all ranks; rank 0's result ends the call.

        Raises:
            GroupLost: a rank is gone.
        """
        if self._lost is not None:
            raise self._lost
        if self._pending is not None:
            raise RuntimeError(f"step {self._pending_step} is still in flight")
        encoded = self._codec.encode(Execute(plan))
        self._pending = asyncio.get_running_loop().create_future()
        self._pending_step = plan.step
        try:
            for connection in self._connections:
                connection.post_frame(encoded)
            return await self._pending
        finally:
            self._pending = None

    async def close(self) -> None:
        """Close every connection; workers then wait for another engine."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for connection in self._connections:
            await connection.close()

    async def _read(self, rank: int, connection: Connection[WorkerToEngine]) -> None:
        try:
            while (message := await connection.receive()) is not None:
                match message:
                    case Executed(result):
                        self._note_acknowledged(rank, result.step)
                        self._take_result(rank, result)
                    case Acknowledged(step):
                        self._note_acknowledged(rank, step)
                    case WorkerFailed(step, reason):
                        self._lose(f"rank {rank} failed in step {step}: {reason}")
                        return
            self._lose(f"rank {rank} closed its connection")
        except WireError as error:
            self._lose(f"rank {rank}: {error}")

    def _take_result(self, rank: int, result: StepResult) -> None:
        if rank != 0 or result.step != self._pending_step or self._pending is None:
            self._lose(f"rank {rank} answered step {result.step} unasked")
        elif not self._pending.done():
            self._pending.set_result(result)

    def _note_acknowledged(self, rank: int, step: int) -> None:
        before = self.acknowledged_step
        self._acknowledged[rank] = max(self._acknowledged[rank], step)
        if self.acknowledged_step > before:
            self._callback()

    def _lose(self, reason: str) -> None:
        if self._lost is None:
            self._lost = GroupLost(reason)
        if self._pending is not None and not self._pending.done():
            self._pending.set_exception(self._lost)
