"""Measures how much memory the largest step takes, and how many KV blocks fit beside it.

Nothing here is guessed: the step is run once and its peak read from the operating system or the
device. Knows nothing of what the step computes. Units: bytes, blocks.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from blockyard.workers.config import AllocatorMemory, WorkerConfig

__all__ = [
    "NoRoom",
    "allocator_memory",
    "count_blocks",
    "count_host_blocks",
    "default_budget",
    "measure_peak",
    "useful_blocks",
]

CPU_DEFAULT_BYTES = 1 << 30
"""Most memory taken on a CPU without being asked to: a laptop should stay usable."""

CPU_HOST_BYTES = 512 << 20
"""Most memory for swapped blocks on a CPU without being asked to: it is the same memory."""

CPU_SHARE = 0.25
HOST_SHARE = 0.25
GPU_SHARE = 0.9


class NoRoom(Exception):
    """The memory allowed does not hold one context; the message has the numbers."""


def measure_peak(step: Callable[[], None], device: torch.device) -> int:
    """Bytes by which running `step` raised this process's (or the device's) memory at its peak."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device) - before
        # Given back, or what is free afterwards would be short of the step's memory twice.
        torch.cuda.empty_cache()
        return peak
    _reset_high_water()
    before = _status_bytes("VmRSS")
    step()
    return max(0, _status_bytes("VmHWM") - before)


def allocator_memory(device: str) -> AllocatorMemory | None:
    """What torch's allocator on `device` holds now; None where it keeps no books, as on a CPU.

    Walks all its pieces: for who asks, not for every step. Safe beside a step in another thread.
    """
    place = torch.device(device)
    if place.type != "cuda":
        return None
    index = place.index if place.index is not None else torch.cuda.current_device()
    # Outside of allocations: pieces handed out, or given back and waiting for a stream, are not.
    free = [
        block["size"]
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segment["device"] == index
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    return AllocatorMemory(
        reserved_bytes=torch.cuda.memory_reserved(place),
        allocated_bytes=torch.cuda.memory_allocated(place),
        free_bytes=sum(free),
        largest_free_bytes=max(free, default=0),
    )


def default_budget(device: torch.device) -> int:
    """Bytes that blocks and activations may take together, when nothing was said.

    CPU: the lesser of 1 GiB and a quarter of what is available. GPU: nine tenths of the device,
    less what is used already (weights included).
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return int(GPU_SHARE * total) - (total - free)
    return min(CPU_DEFAULT_BYTES, int(CPU_SHARE * _available_bytes()))


def useful_blocks(config: WorkerConfig) -> int:
    """Blocks that a full batch of longest requests would hold; more would never be used."""
    return config.max_running * _context_blocks(config)


def count_blocks(
    config: WorkerConfig, block_bytes: int, activation_bytes: int, device: torch.device
) -> int:
    """How many blocks this rank has room for.

    `kv_memory_bytes` is for blocks alone; the default budget is for blocks and the largest step.

    Raises:
        NoRoom: not even one request of the longest context would fit.
    """
    if config.kv_memory_bytes is not None:
        room = config.kv_memory_bytes
        origin = "were given"
    else:
        room = default_budget(device) - activation_bytes
        origin = f"are left by default beside a step of {_mib(activation_bytes)}"
    blocks = min(room // block_bytes, useful_blocks(config))
    needed = _context_blocks(config)
    if blocks < needed:
        raise NoRoom(
            f"{_mib(room)} {origin} for KV blocks of {_mib(block_bytes)} each: room for "
            f"{max(0, blocks)}, but one context of {config.max_context_tokens} tokens needs "
            f"{needed} ({_mib(needed * block_bytes)}); allow more memory or a shorter context"
        )
    return blocks


def count_host_blocks(
    config: WorkerConfig, block_bytes: int, num_blocks: int, device: torch.device
) -> int:
    """How many blocks this rank keeps in host memory: as configured, or a default.

    By default a quarter of what the host has, at most as many as there are on the device.
    """
    if config.num_host_blocks is not None:
        return config.num_host_blocks
    room = int(HOST_SHARE * _available_bytes())
    if device.type == "cpu":
        room = min(room, CPU_HOST_BYTES)
    return min(room // block_bytes, num_blocks)


def _context_blocks(config: WorkerConfig) -> int:
    return -(-config.max_context_tokens // config.block_size)


def _reset_high_water() -> None:
    """Set the process's high-water mark to what it holds now.

    Where that is not allowed the mark stays, and the peak comes out too high: the safe side.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _available_bytes() -> int:
    """What the machine, and the container if its limit is visible, still has."""
    available = _kernel_bytes(Path("/proc/meminfo"), "MemAvailable")
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        return min(available, limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no such group, or its limit is the word "max"
        return available


def _status_bytes(field: str) -> int:
    return _kernel_bytes(Path("/proc/self/status"), field)


def _kernel_bytes(path: Path, field: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{path} has no {field}")


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
