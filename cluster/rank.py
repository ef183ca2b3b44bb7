"""One rank in a process of its own, and how whoever started the process speaks with it.

Only start-up and repair go this way; steps go over the wire. Knows no Ray.
"""

import os
from collections.abc import Callable
from typing import Any, Protocol

from blockyard.cluster.moves.door_messages import RankDoor
from blockyard.cluster.wire import Endpoint
from blockyard.cluster.worker_host import WorkerHost
from blockyard.workers.adapter_description import AdapterDescription
from blockyard.workers.config import (
    AllocatorMemory,
    Executor,
    Formation,
    WorkerConfig,
    WorkerProfile,
)
from blockyard.workers.group_end import SILENT, GroupEnd, SilentEnd
from blockyard.workers.make_worker import make_group_end, make_worker

__all__ = ["Rank", "RankDied", "RankHandle"]


class RankDied(Exception):
    """The rank's process is gone."""


class RankHandle(Protocol):
    """A rank as seen from the process that runs its group."""

    async def call(self, method: str, *arguments: object) -> Any:
        """Call a method of the other side's `Rank`, and have its answer or its exception.

        Raises:
            RankDied: nobody is there to answer.
        """
        ...


class Rank:
    """Lives in the rank's process. The calls come in the order below, `load` first.

    Args:
        host: address at which this process listens for its peers.
        make: makes a worker in place of the one that its configuration asks for, for benchmarks.
    """

    def __init__(self, host: str, make: Callable[[WorkerConfig], Executor] | None = None) -> None:
        self._address = host
        self._make = make
        self._end: GroupEnd | None = None
        self._host: WorkerHost | None = None
        self._profile: WorkerProfile | None = None

    def load(self, config: WorkerConfig) -> WorkerProfile:
        """Load a model and measure; what was loaded before is dropped."""
        self.close()
        end = self._end = make_group_end(config)
        make = self._make
        self._host = WorkerHost(
            lambda: make_worker(config, None, end) if make is None else make(config), config.rank
        )
        self._profile = self._host.load()
        return self._profile

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Make the pools; for another engine, make them anew."""
        self._loaded().allocate(num_blocks, num_host_blocks)

    def open_meeting(self, generation: int, machines: list[str]) -> Formation:
        """Prepare the place where ranks on these machines meet; rank 0 is asked."""
        end = self._group_end()
        if isinstance(end, SilentEnd):
            return end.open(SILENT, generation, self._address)
        # Not before it is needed: who only starts ranks, or a witness, has no use for torch.
        from blockyard.workers.collectives import choose_transport

        assert self._profile is not None, "load comes first"
        transport = choose_transport(self._profile.device, machines)
        return end.open(transport, generation, self._address)

    def join(self, formation: Formation) -> None:
        """Meet the other ranks; returns when all are there."""
        self._group_end().join(formation)

    def give_up(self) -> None:
        """Leave the group as it was: a step that waits for lost peers ends. Comes at any time."""
        self._group_end().abort()

    def listen(self) -> Endpoint:
        """Wait for the engine; returns where."""
        return self._loaded().listen(self._address)

    def open_door(self) -> tuple[Endpoint, RankDoor]:
        """Where the engine has blocks moved to and from other groups; where those fetch them."""
        door = self._loaded().open_door(self._address)
        return door.control, door.door

    def load_adapter(self, adapter: AdapterDescription) -> str:
        """Have an adapter ready, beside the steps that run; why it cannot be, or nothing."""
        return self._loaded().load_adapter(adapter)

    def drop_adapter(self, adapter_id: str) -> None:
        """Forget an adapter that no step uses any more."""
        if self._host is not None:  # else it has none
            self._host.drop_adapter(adapter_id)

    def allocator_memory(self) -> AllocatorMemory | None:
        """What the device's allocator holds now; None on a CPU, and before the model is loaded."""
        if self._profile is None or not self._profile.device.startswith("cuda"):
            return None
        from blockyard.workers.memory import allocator_memory

        return allocator_memory(self._profile.device)

    def process_id(self) -> int:
        """This rank's process id, for operators and fault tests."""
        return os.getpid()

    def rest(self) -> None:
        """End what was loaded and give back its memory; `load` comes next."""
        from blockyard.workers.given_back import give_back_memory

        host = self._host
        self.close()
        if host is not None:
            host.wait_ended()
            del host
        give_back_memory()

    def close(self) -> None:
        """End what was loaded."""
        if self._end is not None:
            self._end.abort()
        if self._host is not None:
            self._host.close()
        self._host = self._end = self._profile = None

    def _group_end(self) -> GroupEnd:
        assert self._end is not None, "load comes first"
        return self._end

    def _loaded(self) -> WorkerHost:
        assert self._host is not None, "load comes first"
        return self._host
