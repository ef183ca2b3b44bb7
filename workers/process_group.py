"""Collectives by torch's process groups: gloo for CPU ranks on many machines, nccl for GPUs.

Each generation has a store and a group of its own, and none is torch's default group, so a broken
one is simply dropped. nccl needs a GPU for each rank. Units: seconds.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import TCPStore

from blockyard.workers.transport import PeerLost

__all__ = ["ProcessGroupTransport"]

KINDS = ("gloo", "nccl")


class ProcessGroupTransport:
    """A `Transport` by a process group of torch.

    gloo learns of a peer's death from its connections at once; nccl does not, and has to be told
    by `abort`.

    Args:
        kind: `gloo` or `nccl`.
        store: where the ranks meet.
        host: this machine's address for its peers.
        rank, size: this rank's place.
        timeout_seconds: how long an operation waits for a peer.
    """

    def __init__(
        self,
        kind: str,
        store: TCPStore,
        host: str,
        rank: int,
        size: int,
        timeout_seconds: float,
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"transport is {kind!r}; known are {', '.join(KINDS)}")
        self._kind = kind
        self._store = store
        self._host = host
        self._rank = rank
        self._size = size
        self._timeout = timedelta(seconds=timeout_seconds)
        self._group: Any = None
        self._lost: str | None = None

    @classmethod
    def create(
        cls, kind: str, size: int, host: str, timeout_seconds: float
    ) -> "ProcessGroupTransport":
        """Open a store as rank 0; the kernel picks its port."""
        store = _store(host, 0, True, timeout_seconds)
        return cls(kind, store, host, 0, size, timeout_seconds)

    @classmethod
    def attach(
        cls, kind: str, address: str, rank: int, size: int, timeout_seconds: float
    ) -> "ProcessGroupTransport":
        """Connect to rank 0's store.

        Raises:
            PeerLost: it is not there.
        """
        host, _, port = address.rpartition(":")
        try:
            store = _store(host, int(port), False, timeout_seconds)
        except RuntimeError as error:  # torch's own errors are of this kind
            raise PeerLost(f"rank 0 cannot be reached: {error}") from error
        return cls(kind, store, _own_address(host, int(port)), rank, size, timeout_seconds)

    @property
    def address(self) -> str:
        """Host and port of the store."""
        return f"{self._host}:{self._store.port}"

    def meet(self) -> None:
        """See `Transport`."""
        with self._peers_may_be_lost():
            if self._kind == "nccl":
                nccl: Any = distributed.ProcessGroupNCCL
                options = nccl.Options()
                options._timeout = self._timeout
                self._group = nccl(self._store, self._rank, self._size, options)
                # nccl connects at the first operation, which must not be the first step's.
                self.all_reduce(torch.zeros(1, device="cuda"))
                return
            gloo: Any = distributed.ProcessGroupGloo
            options = gloo._Options()
            options._timeout = self._timeout
            # Its default is the machine's host name, which need not lead to the machine.
            options._devices = [gloo.create_device(hostname=self._host)]
            self._group = gloo(self._store, self._rank, self._size, options)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """See `Transport`."""
        with self._peers_may_be_lost():
            self._group.allreduce(tensor).wait()

    def gather(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """See `Transport`."""
        gathered = tensor.new_empty(self._size, *tensor.shape) if self._rank == 0 else None
        outputs = list(gathered.unbind()) if gathered is not None else []
        with self._peers_may_be_lost():
            self._group.gather(outputs, tensor, 0).wait()
        return gathered

    def broadcast(self, tensor: torch.Tensor) -> None:
        """See `Transport`."""
        with self._peers_may_be_lost():
            self._group.broadcast(tensor, 0).wait()

    def abort(self) -> None:
        """See `Transport`. gloo ends the call itself when it notices the death, or in time."""
        self._lost = "the group was given up"
        if self._group is not None and self._kind == "nccl":
            self._group.abort()

    def close(self) -> None:
        """See `Transport`."""
        self.abort()
        self._group = None

    @contextmanager
    def _peers_may_be_lost(self) -> Iterator[None]:
        if self._lost is not None:
            raise PeerLost(self._lost)
        try:
            yield
        except RuntimeError as error:  # torch's own errors are of this kind
            self._lost = f"a peer is lost: {error}"
            raise PeerLost(self._lost) from error


def _store(host: str, port: int, is_master: bool, timeout_seconds: float) -> TCPStore:
    return TCPStore(
        host,
        port,
        None,
        is_master,
        timedelta(seconds=timeout_seconds),
        wait_for_workers=False,
    )


def _own_address(host: str, port: int) -> str:
    """This machine's address on the way to another; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        address: str = probe.getsockname()[0]
        return address
