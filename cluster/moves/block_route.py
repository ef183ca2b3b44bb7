"""One rank's connection to another's door, over which it fetches the blocks of a parcel.

Blocking: bytes go from the socket straight to where the blocks belong. Units: blocks, bytes,
seconds.
"""

import socket
import time

import msgspec

from blockyard.cluster.blocking_wire import receive_frame
from blockyard.cluster.handshake import HANDSHAKE_SECONDS, handshake_as_client
from blockyard.cluster.moves.door_messages import Fetch, Fetched, Giving, RankDoor, Take
from blockyard.cluster.moves.offered import runs
from blockyard.cluster.wire import WireError, frame, tune
from blockyard.workers.host_memory import HostMemory

__all__ = ["BlockRoute", "receive_take"]

_MOST_WORDS_BYTES = 64 * 1024
"""Of what is said beside blocks."""


class BlockRoute:
    """Connects at once, in time for a deadline of the monotonic clock.

    Raises:
        OSError: nobody is there, or it is not who it was said to be.
    """

    def __init__(self, source: RankDoor, deadline: float) -> None:
        seconds = min(_left(deadline), HANDSHAKE_SECONDS)
        self.peer = socket.create_connection((source.host, source.port), seconds)
        try:
            tune(self.peer)
            handshake_as_client(self.peer, source.secret, seconds)
        except BaseException:
            self.peer.close()
            raise

    def fetch(self, asked: Fetch, memory: HostMemory, deadline: float) -> Fetched:
        """Fetch blocks into where they belong, as many as come in time."""
        began = time.monotonic()
        ready, filled, error = began, 0, ""
        try:
            self._ask(asked, memory, deadline)
            ready = time.monotonic()
            for first, length in runs(asked.host_ids):
                view = memory.run(first, length)
                while view:
                    left = deadline - time.monotonic()
                    if left <= 0:  # though bytes may still come, one by one
                        raise TimeoutError("the time for it is over")
                    self.peer.settimeout(left)
                    count = self.peer.recv_into(view)
                    if not count:
                        raise ConnectionError("the rank that had the blocks hung up")
                    filled += count
                    view = view[count:]
        except (OSError, ValueError, msgspec.MsgspecError) as failure:
            error = str(failure) or type(failure).__name__
        blocks = filled // memory.block_bytes
        seconds = time.monotonic() - ready
        return Fetched(asked.ticket, blocks, filled, ready - began, seconds, error)

    def _ask(self, asked: Fetch, memory: HostMemory, deadline: float) -> None:
        """Raises `OSError` unless the blocks are on their way."""
        count = len(asked.host_ids)
        take = Take(asked.key, memory.layout, asked.first, count, _left(deadline))
        self.peer.settimeout(_left(deadline))
        self.peer.sendall(frame(msgspec.msgpack.encode(take)))
        payload = receive_frame(self.peer, _MOST_WORDS_BYTES)
        if payload is None:
            raise ConnectionError("the rank that had the blocks hung up")
        giving = msgspec.msgpack.decode(payload, type=Giving)
        if giving.refused:
            raise WireError(giving.refused)


def receive_take(peer: socket.socket) -> Take | None:
    """What a peer wants next; None when it hung up.

    Raises:
        OSError, msgspec.MsgspecError: it is not to be understood.
    """
    payload = receive_frame(peer, _MOST_WORDS_BYTES)
    return None if payload is None else msgspec.msgpack.decode(payload, type=Take)


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)
