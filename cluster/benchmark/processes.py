"""Memory of this process and all that it has started. Linux only. Units: bytes."""

import re
from pathlib import Path

import psutil

__all__ = ["peak_memory_bytes"]

_HIGH_WATER = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def peak_memory_bytes() -> int:
    """The most that each process has held, added up; pages that they share count for each."""
    own = psutil.Process()
    total = 0
    for process in (own, *own.children(recursive=True)):
        try:
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        except OSError:
            continue  # it has ended meanwhile
        found = _HIGH_WATER.search(status)
        total += int(found[1]) * 1024 if found else 0
    return total
