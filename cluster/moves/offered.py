"""Parcels that other ranks may have from this one, and who reads them right now.

When nobody may have a parcel any more, and nobody reads it, its giver is told: from then on its
blocks may be written again. For threads. Units: blocks, bytes.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

__all__ = ["Offered", "OfferedParcels", "runs"]

_MOST_CLOSING_SECONDS = 5.0


@dataclass(eq=False)
class Offered:
    """One parcel."""

    key: bytes
    host_ids: tuple[int, ...]
    tell: Callable[[bytes, int], None]
    readers: set[socket.socket] = field(default_factory=set)
    withdrawn: bool = False
    num_bytes: int = 0
    """That were read."""

    def runs(self, first: int, count: int) -> Iterator[tuple[int, int]]:
        """First block and length of each run of neighbours among so many blocks from `first` on."""
        yield from runs(self.host_ids[first : first + count])


class OfferedParcels:
    """All of one rank."""

    def __init__(self) -> None:
        self._parcels: dict[bytes, Offered] = {}
        self._changed = threading.Condition()
        self._num_readers = 0
        self._closed = False

    def offer(
        self, key: bytes, host_ids: tuple[int, ...], tell: Callable[[bytes, int], None]
    ) -> None:
        """From now on whoever names `key` may have these; `tell` is called once that is over."""
        with self._changed:
            self._parcels[key] = Offered(key, host_ids, tell)
            self._changed.notify_all()

    def find(self, key: bytes, seconds: float) -> Offered | None:
        """A parcel, once it is offered; None when it is not within so long."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._closed:
                offered = self._parcels.get(key)
                left = deadline - time.monotonic()
                if offered is not None or left <= 0:
                    return offered
                self._changed.wait(left)
        return None

    @contextlib.contextmanager
    def reading(self, offered: Offered, peer: socket.socket) -> Iterator[None]:
        """While a peer reads a parcel it is not over.

        Raises:
            ConnectionError: it was withdrawn.
        """
        with self._changed:
            if offered.withdrawn or self._closed:
                raise ConnectionError("the parcel was withdrawn")
            offered.readers.add(peer)
            self._num_readers += 1
        try:
            yield
        finally:
            with self._changed:
                offered.readers.discard(peer)
                self._num_readers -= 1
                self._changed.notify_all()
            self._settle(offered)

    def withdraw(self, key: bytes) -> None:
        """Nobody may have a parcel any more; who reads it is cut off. Safe twice."""
        with self._changed:
            offered = self._parcels.pop(key, None)
            if offered is None:
                return
            offered.withdrawn = True
            for peer in offered.readers:
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)
        self._settle(offered)

    def close(self) -> None:
        """Offer nothing any more."""
        with self._changed:
            self._closed = True
            keys = tuple(self._parcels)
            self._changed.notify_all()
        for key in keys:
            self.withdraw(key)

    def wait_unread(self) -> None:
        """Return once nobody reads anything; who was cut off ends soon."""
        with self._changed:
            self._changed.wait_for(lambda: not self._num_readers, _MOST_CLOSING_SECONDS)

    def _settle(self, offered: Offered) -> None:
        with self._changed:
            if not offered.withdrawn or offered.readers:
                return
            tell, offered.tell = offered.tell, _told
        tell(offered.key, offered.num_bytes)


def runs(host_ids: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """First block and length of each run of neighbours."""
    begin = 0
    for end in range(1, len(host_ids) + 1):
        if end == len(host_ids) or host_ids[end] != host_ids[end - 1] + 1:
            yield host_ids[begin], end - begin
            begin = end


def _told(key: bytes, num_bytes: int) -> None:
    """It was told already."""
