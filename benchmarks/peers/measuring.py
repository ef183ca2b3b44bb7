"""What every peer's driver shares: workloads, a meter of time and memory, one line of JSON a pass.

Runs in the virtual environments of the peers, so it needs the standard library alone. A driver
hands `run_passes` a function that serves requests in a closed loop and tells when tokens came.
Units: seconds, milliseconds where a name says so, MiB.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Requests", "Times", "arguments", "run_passes"]

Requests = list[dict[str, Any]]
"""Each with `id`, `prompt` (token ids) and `max_tokens`."""

Times = dict[int, tuple[float, list[float]]]
"""By id: when it was submitted, and when each of its tokens came."""

_TICKS = os.sysconf("SC_CLK_TCK")
_FIRST_PLAIN_TOKEN = 32
_VOCABULARY = 49152


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Options that every driver has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, help="directory or file, as the peer wants it")
    parser.add_argument("--workload", required=True, nargs="+", type=Path)
    parser.add_argument("--label", required=True, help="the weights: fp32, bf16, int8, int4")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--first-pass", type=int, default=0, help="changes the prompts")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are added to it")
    return parser


def run_passes(
    options: argparse.Namespace,
    peer: str,
    facts: dict[str, Any],
    serve: Callable[[Requests, int], Times],
) -> None:
    """Serve every workload, a short pass first that is not counted, and write the results."""
    for place, path in enumerate(options.workload):
        workload = json.loads(path.read_text(encoding="utf-8"))
        requests, concurrency = workload["requests"], workload["concurrency"]
        # Workloads that share their prompts must not find them in a cache either.
        offset = 1000 * place
        short = _shifted(requests[:4], offset + 900 + options.first_pass)
        serve([{**one, "max_tokens": min(one["max_tokens"], 8)} for one in short], concurrency)
        for number in range(options.first_pass, options.first_pass + options.passes):
            for repeat in range(workload.get("repeat", 1)):
                shifted = _shifted(requests, offset + 10 * number + repeat)
                meter = _Meter()
                times = serve(shifted, concurrency)
                line = {
                    "peer": peer,
                    "label": options.label,
                    "workload": workload["name"],
                    "pass": number,
                    "threads": options.threads,
                    **facts,
                    **_summary(shifted, times, meter),
                }
                with options.out.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(line) + "\n")


def _shifted(requests: Requests, number: int) -> Requests:
    """The same work with other first tokens: prefix caches help within a pass, not across."""
    span = _VOCABULARY - _FIRST_PLAIN_TOKEN
    shifted = []
    for request in requests:
        first = request["prompt"][0] - _FIRST_PLAIN_TOKEN
        prompt = [_FIRST_PLAIN_TOKEN + (first + 1009 * number) % span, *request["prompt"][1:]]
        shifted.append({**request, "prompt": prompt})
    return shifted


class _Meter:
    """CPU seconds of this process and its children, and of everything else on the machine."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._own, self._busy = _own_cpu(), _busy_cpu()

    def stop(self) -> dict[str, float]:
        seconds = time.perf_counter() - self._began
        own = _own_cpu() - self._own
        others = max(0.0, _busy_cpu() - self._busy - own)
        return {
            "seconds": round(seconds, 7),
            "cpu_seconds": round(own, 3),
            "other_cores": round(others / seconds, 3),
        }


def _summary(requests: Requests, times: Times, meter: _Meter) -> dict[str, Any]:
    metered = meter.stop()
    tokens = sum(len(times[request["id"]][1]) for request in requests)
    wanted = sum(request["max_tokens"] for request in requests)
    if tokens != wanted:
        raise SystemExit(f"{tokens} of {wanted} tokens came")
    first = [times[request["id"]][1][0] - times[request["id"]][0] for request in requests]
    between = [
        later - earlier
        for _, stamps in times.values()
        for earlier, later in itertools.pairwise(stamps)
    ]
    return {
        **metered,
        "output_tokens": tokens,
        "output_tokens_per_s": round(tokens / metered["seconds"], 3),
        "ttft_ms": _median_ms(first),
        "itl_ms": _median_ms(between),
        "peak_memory_mib": _peak_mib(),
    }


def _median_ms(seconds: list[float]) -> float:
    return round(1e3 * statistics.median(seconds), 2) if seconds else 0.0


def _family() -> list[int]:
    found, unseen = [], [os.getpid()]
    while unseen:
        pid = unseen.pop()
        found.append(pid)
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                children = Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="utf-8")
                unseen += [int(child) for child in children.split()]
        except OSError:
            continue  # it has ended meanwhile
    return found


def _own_cpu() -> float:
    ticks = 0
    for pid in _family():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def _busy_cpu() -> float:
    first = Path("/proc/stat").read_text(encoding="utf-8").partition("\n")[0]
    user, nice, system, _idle, _wait, irq, soft = (int(ticks) for ticks in first.split()[1:8])
    return (user + nice + system + irq + soft) / _TICKS


def _peak_mib() -> int:
    kilobytes = 0
    for pid in _family():
        try:
            lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return round(kilobytes / 1024)
