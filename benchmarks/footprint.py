"""Measures what a running `blockyard serve` costs while it stands idle: CPU time and memory.

Reads the process table only; asks the server nothing, so that it stays idle. "Ours" are the
command itself, the central scheduler, the replicas and the workers; the rest is Ray's own. Inside
ours, the first thread of an actor's process belongs to Ray too: it hands out actor calls and looks
for signals every 10 ms, which no setting changes; none of our code runs there. Units: percent of
one core; MiB of PSS (each shared page counted in parts among its users).

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
    """One process. `ours` is whether our code runs in it; `actor_loop_percent` is what the thread
    in which Ray hands out an actor's calls takes of `cpu_percent`.
    """

    name: str
    pid: int
    ours: bool
    cpu_percent: float
    actor_loop_percent: float
    pss_mib: float


def measure(pid: int, seconds: float) -> list[Usage]:
    """Watch a server and its descendants for so long; the busiest first.

    Raises:
        psutil.Error: the process is not there, ended meanwhile, or belongs to someone else.
    """
    root = psutil.Process(pid)
    before = {process: (_cpu_seconds(process), _loop_seconds(process)) for process in _family(root)}
    began = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    used = []
    for process in _family(root):
        # A process that began meanwhile counts from zero.
        seen, seen_loop = before.get(process, (0.0, 0.0))
        title = _title(process)
        used.append(
            Usage(
                name="blockyard serve" if process == root else title,
                pid=process.pid,
                ours=process == root or title.startswith(OUR_TITLES),
                cpu_percent=100.0 * (_cpu_seconds(process) - seen) / elapsed,
                actor_loop_percent=100.0 * (_loop_seconds(process) - seen_loop) / elapsed,
                pss_mib=process.memory_full_info().pss / 2**20,
            )
        )
    return sorted(used, key=lambda usage: (not usage.ours, -usage.cpu_percent))


def _family(root: psutil.Process) -> list[psutil.Process]:
    return [root, *root.children(recursive=True)]


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _loop_seconds(process: psutil.Process) -> float:
    """CPU time of an actor's first thread; 0 in processes that are no actors."""
    if not _title(process).startswith("ray::"):
        return 0.0
    first = next((each for each in process.threads() if each.id == process.pid), None)
    return float(first.user_time + first.system_time) if first is not None else 0.0


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
            "actor_loop_percent": sum(usage.actor_loop_percent for usage in group),
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
    print(f"{'process':40} {'% of a core':>12} {'in Ray loop':>12} {'MiB of PSS':>12}")
    for usage in used:
        owner = "ours" if usage.ours else "Ray"
        _print_row(f"{usage.name[:34]:34} {owner:>5}", asdict(usage))
    for name, total in totals.items():
        _print_row(f"total {name}", total)


def _print_row(label: str, figures: dict[str, float]) -> None:
    cpu, loop = figures["cpu_percent"], figures["actor_loop_percent"]
    print(f"{label:40} {cpu:12.2f} {loop:12.2f} {figures['pss_mib']:12,.0f}")


if __name__ == "__main__":
    main()
