"""The wire's frames over blocking sockets, for threads that sleep in `recv`.

Frame: see `wire.py`. Units: bytes.
"""

import socket

from blockyard.cluster.wire import MAX_FRAME_BYTES, WireError

__all__ = ["receive_exactly", "receive_frame"]

_HEADER_BYTES = 4


def receive_frame(peer: socket.socket, most_bytes: int = MAX_FRAME_BYTES) -> bytes | None:
    """The payload of the next frame, or None when the peer hung up.

    Raises:
        WireError: it announced more than `most_bytes`.
    """
    header = receive_exactly(peer, _HEADER_BYTES)
    if header is None:
        return None
    length = int.from_bytes(header, "big")
    if length > most_bytes:
        raise WireError(f"peer announced a frame of {length} bytes, over the limit")
    return receive_exactly(peer, length)


def receive_exactly(peer: socket.socket, count: int) -> bytes | None:
    """Exactly `count` bytes, or None when the peer hung up."""
    received = bytearray(count)
    view = memoryview(received)
    filled = 0
    while filled < count:
        piece = peer.recv_into(view[filled:])
        if piece == 0:
            return None
        filled += piece
    return bytes(received)
