"""What an engine's process does to itself, its ranks and its wires when it is asked to.

Made only where faults are allowed. Units: seconds.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from typing import Protocol

from blockyard.cluster.chaos.faults import Disturb, Fault
from blockyard.cluster.engine_server import EngineServer
from blockyard.cluster.worker_group import WorkerGroup
from blockyard.scheduler.scarcity import set_host_blocks_aside

__all__ = ["EngineFaults", "Victim"]

_LAST_WORDS_SECONDS = 0.1
"""For the answer to be sent before the process that sends it dies."""


class Victim(Protocol):
    """A rank as far as faults go."""

    def signal(self, number: int) -> None:
        """Send a signal to its process.

        Raises:
            LookupError: it is not on this node.
        """
        ...


class EngineFaults:
    """Faults of one engine.

    Args:
        server: of the engine.
        ranks, group: as they are now.
    """

    def __init__(
        self,
        server: EngineServer,
        ranks: Callable[[], Sequence[Victim]],
        group: Callable[[], WorkerGroup],
    ) -> None:
        self._server = server
        self._ranks = ranks
        self._group = group

    def __call__(self, asked: Disturb) -> str:
        """Make it go wrong; what was done, in words.

        Raises:
            LookupError: there is no such rank, or it is out of reach.
        """
        loop = asyncio.get_running_loop()
        rank, seconds = asked.rank, asked.seconds
        match asked.fault:
            case Fault.KILL_RANK:
                self._rank(rank).signal(signal.SIGKILL)
                return f"rank {rank} was killed"
            case Fault.STOP_RANK:
                self._rank(rank).signal(signal.SIGSTOP)
                return f"rank {rank} was stopped"
            case Fault.STALL_RANK:
                victim = self._rank(rank)
                victim.signal(signal.SIGSTOP)
                loop.call_later(seconds, _wake, victim)
                return f"rank {rank} stands still for {seconds:g} s"
            case Fault.DROP_RANK_WIRE:
                self._rank(rank)
                self._group().drop_wire(rank)
                return f"the wire to rank {rank} was cut"
            case Fault.DELAY_RANK_WIRE:
                self._rank(rank)
                self._group().hold_wire(rank, seconds)
                return f"nothing is heard from rank {rank} for {seconds:g} s"
            case Fault.KILL_ENGINE:
                loop.call_later(_LAST_WORDS_SECONDS, os.kill, os.getpid(), signal.SIGKILL)
                return "the engine was killed"
            case Fault.DROP_INGRESS_WIRE:
                loop.call_later(_LAST_WORDS_SECONDS, self._server.drop_wires)
                return "the wires to all ingresses were cut"
            case Fault.FILL_HOST_POOL:
                scheduler = self._server.engine.scheduler
                num_blocks = set_host_blocks_aside(scheduler, True)
                # One that has taken its place meanwhile has a pool of its own.
                loop.call_later(seconds, set_host_blocks_aside, scheduler, False)
                return f"{num_blocks} host blocks cannot be had for {seconds:g} s"
            case Fault.KILL_CENTRAL:
                raise LookupError("the central scheduler is not an engine's to kill")

    def _rank(self, rank: int) -> Victim:
        ranks = self._ranks()
        if rank >= len(ranks):
            raise LookupError(f"there is no rank {rank}; the group has {len(ranks)}")
        return ranks[rank]


def _wake(victim: Victim) -> None:
    try:
        victim.signal(signal.SIGCONT)
    except LookupError:
        return  # it was replaced meanwhile
