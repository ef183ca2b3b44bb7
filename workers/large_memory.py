"""Memory of a CPU that is read from end to end: in large pages, and there before it is used.

Units: bytes.
"""

import contextlib
import mmap
import sys

import torch

__all__ = ["held_memory", "large_memory"]


def large_memory(num_bytes: int) -> torch.Tensor:
    """Zeros, uint8 `[num_bytes]`, in large pages where the system has them.

    The system finds a page when it is first written to.

    Raises:
        MemoryError: the system refuses so much.
    """
    if sys.platform != "linux":
        return torch.zeros(num_bytes, dtype=torch.uint8)
    try:
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        size = f"{num_bytes / 2**20:,.0f} MiB"
        raise MemoryError(f"the system does not give {size} of memory: {error}") from error
    with contextlib.suppress(OSError):  # a kernel without large pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)


def held_memory(num_bytes: int) -> torch.Tensor:
    """The same, with every page found: no step waits for one, and what is promised is there."""
    memory = large_memory(num_bytes)
    memory[:: mmap.PAGESIZE] = 0
    return memory
