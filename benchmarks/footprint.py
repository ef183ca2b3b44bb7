"""Measures what a running `blockyard serve` costs while it stands idle: CPU time and memory.

Reads the process table only; asks the server nothing, so that it stays idle. "Ours" are the
command itself, the central scheduler, the replicas and the workers; the rest is Ray's own.
Units: percent of one core; MiB of PSS (each shared page counted in parts among its users).

    python benchmarks/footprint.py PID --seconds 30
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass

import psutil

__all__ = ["Usage", "measure"]

OUR_TITLES = ("ray::CentralActor", "ray::ServeReplica:blockyard:", "ray::WorkerActor")


@dataclass(frozen=True, slots=True)
class Usage:
    """One process. `ours` is whether our code runs in it."""

    name: str
    pid: int
    ours: bool
    cpu_percent: float
    pss_mib: float


def measure(pid: int, seconds: float) -> list[Usage]:
    """Watch a server and its descendants for so long; the busiest first.

    Raises:
        psutil.Error: the process is not there, ended meanwhile, or belongs to someone else.
    """
    root = psutil.Process(pid)
    before = {process: _cpu_seconds(process) for process in _family(root)}
    began = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    used = []
    for process in _family(root):
        # A process that began meanwhile counts from zero.
        spent = _cpu_seconds(process) - before.get(process, 0.0)
        title = _title(process)
        used.append(
            Usage(
                name="blockyard serve" if process == root else title,
                pid=process.pid,
                ours=process == root or title.startswith(OUR_TITLES),
                cpu_percent=100.0 * spent / elapsed,
                pss_mib=process.memory_full_info().pss / 2**20,
            )
        )
    return sorted(used, key=lambda usage: (not usage.ours, -usage.cpu_percent))


def _family(root: psutil.Process) -> list[psutil.Process]:
    return [root, *root.children(recursive=True)]


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _title(process: psutil.Process) -> str:
    """What a person knows a process by: Ray's title, else the file of its program or script."""
    words: list[str] = [word for word in process.cmdline() if word and not word.startswith("-")]
    if not words:
        return str(process.name())
    is_python = words[0].rsplit("/", 1)[-1].startswith("python")
    named = words[1] if is_python and len(words) > 1 else words[0]
    return named if named.startswith("ray::") else named.rsplit("/", 1)[-1]


def _totals(used: list[Usage]) -> dict[str, dict[str, float]]:
    groups = {
        "ours": [usage for usage in used if usage.ours],
        "ray": [usage for usage in used if not usage.ours],
        "all": used,
    }
    return {
        name: {
            "cpu_percent": sum(usage.cpu_percent for usage in group),
            "pss_mib": sum(usage.pss_mib for usage in group),
        }
        for name, group in groups.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pid", type=int, help="process id of a running `blockyard serve`")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to watch")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.seconds <= 0:
        parser.error(f"--seconds is {arguments.seconds:g}; it must be above 0")
    try:
        used = measure(arguments.pid, arguments.seconds)
    except psutil.Error as error:
        parser.error(f"cannot watch process {arguments.pid}: {error}")
    totals = _totals(used)
    if arguments.json:
        print(json.dumps({"processes": [asdict(usage) for usage in used], "totals": totals}))
        return
    print(f"{'process':40} {'% of a core':>12} {'MiB of PSS':>12}")
    for usage in used:
        owner = "ours" if usage.ours else "Ray"
        print(f"{usage.name[:34]:34} {owner:>5} {usage.cpu_percent:12.2f} {usage.pss_mib:12,.0f}")
    for name, total in totals.items():
        print(f"{'total ' + name:40} {total['cpu_percent']:12.2f} {total['pss_mib']:12,.0f}")


if __name__ == "__main__":
    main()
