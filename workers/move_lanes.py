"""Where moves of blocks run beside the steps: a lane does its work in order, at its own time.

Units: seconds.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

__all__ = ["CudaLane", "InlineLane", "Lane", "Ticket", "lanes_of"]


class Ticket(Protocol):
    """Stands for work that was given to a lane."""

    def done(self) -> bool:
        """Whether it has ended."""
        ...

    def wait(self) -> None:
        """Have the caller wait for it."""
        ...

    def hold(self) -> None:
        """Have what the device computes from now on wait for it; the caller goes on."""
        ...

    def seconds(self) -> float:
        """What it took, once it is done."""
        ...


class Lane(Protocol):
    """Does work in order, beside the steps and beside other lanes."""

    def run(self, work: Callable[[], None], after: Sequence[Ticket]) -> Ticket:
        """Do some work after all that was queued on the device so far, and after other work.

        Not after what is queued there later: that need not wait for it either, unless told to.
        """
        ...


class InlineLane:
    """Does its work at once: for a CPU, which has no copies beside its computing."""

    def run(self, work: Callable[[], None], after: Sequence[Ticket]) -> Ticket:
        """See `Lane`."""
        began = time.perf_counter()
        work()
        return _Over(time.perf_counter() - began)


class _Over:
    """See `Ticket`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def hold(self) -> None:
        pass

    def seconds(self) -> float:
        return self._seconds


class CudaLane:
    """A stream of its own. What is launched within goes there: torch's copies, and `GpuKernel`'s.

    Memory that work takes comes from torch's allocator under this stream and goes back to it, so
    none is used again before the work is over. No run on a card has confirmed this class yet.

    Args:
        device: of all blocks.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, work: Callable[[], None], after: Sequence[Ticket]) -> Ticket:
        """See `Lane`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for ticket in after:
                ticket.hold()
            event: Any = torch.cuda.Event  # its constructor has no types
            began, ended = (event(enable_timing=True) for _ in range(2))
            began.record(self._stream)
            work()
            ended.record(self._stream)
        return _Events(began, ended, self._device)


class _Events:
    """See `Ticket`."""

    def __init__(self, began: Any, ended: Any, device: torch.device) -> None:
        self._began = began
        self._ended = ended
        self._device = device

    def done(self) -> bool:
        return bool(self._ended.query())

    def wait(self) -> None:
        self._ended.synchronize()

    def hold(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._ended)

    def seconds(self) -> float:
        return float(self._began.elapsed_time(self._ended)) / 1e3


def lanes_of(device: torch.device) -> tuple[Lane, Lane]:
    """A lane out and a lane in: a link carries both ways at once."""
    if device.type == "cuda":
        return CudaLane(device), CudaLane(device)
    return InlineLane(), InlineLane()
