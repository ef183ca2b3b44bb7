"""Measures Blockyard and its peers on this CPU in turns, and compares.

Each round runs every server once on every workload, so that a machine that changes meanwhile
changes for all; figures are medians over rounds. Writes
`benchmarks/results/peers-<cpu>-<date>.json` and a plot beside it. Let nothing else run.

    python benchmarks/peers/compare.py [--rounds 3] [--peers openvino ...] [--workloads w2 ...]
                                          [--more]
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from install import GGUF, PEERS, PLACE, install

from blockyard.cluster.benchmark.end_to_end import decoder_work, floor_seconds
from blockyard.cluster.benchmark.workloads import make_workload
from blockyard.workers.catalog import DEFAULT_MODEL, default_cache_dir
from blockyard.workers.cpu.ceilings import Ceilings, measure_ceilings
from blockyard.workers.cpu.compiler import processor_features
from blockyard.workers.cpu.library import load_library
from blockyard.workers.cpu.packed import WeightStorage

__all__ = ["RUNS", "Run", "compare"]

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
MODEL = default_cache_dir() / DEFAULT_MODEL
_WEIGHT_BITS = {"fp32": 32.0, "bf16": 16.0, "int8": 8.5, "int4": 5.0}
_CHAT = ("w1_c16", "w1_c32")
_ALL = (*_CHAT, "w2", "w3", "w4")
_FIGURES = ("output_tokens_per_s", "ttft_ms", "itl_ms", "cpu_seconds", "peak_memory_mib")


@dataclass(frozen=True, slots=True)
class Run:
    """One server at one precision, and what it serves."""

    peer: str
    label: str
    model: str
    workloads: tuple[str, ...]
    options: tuple[str, ...] = ()
    needs: str = ""
    """A feature of the processor, as Linux names it, without which this run means nothing."""


_LLAMA_SERVER = ("--server", str(PLACE / "llamacpp" / "bin" / "llama-server"))
RUNS = (
    Run("blockyard", "fp32", str(MODEL), _ALL),
    # On a processor that has arithmetic in bfloat16 it would use that for these weights too.
    Run("openvino", "fp32", str(PLACE / "openvino-fp32"), _ALL, ("--precision", "f32")),
    Run("vllm", "fp32", str(MODEL), _ALL),
    Run("transformers", "fp32", str(MODEL), ("w2", "w4")),
    Run("blockyard", "bf16", str(MODEL), ("w1_c16", "w2", "w4")),
    Run("llamacpp", "bf16", str(PLACE / "llamacpp-bf16.gguf"), ("w1_c16", "w2"), _LLAMA_SERVER),
    Run(
        *("openvino", "bf16", str(PLACE / "openvino-fp32"), ("w1_c16", "w2", "w4")),
        options=("--precision", "bf16"),
        needs="amx_bf16",
    ),
    Run("vllm", "bf16", str(MODEL), ("w2",)),
    Run("blockyard", "int8", str(MODEL), ("w1_c16", "w2")),
    Run("openvino", "int8", str(PLACE / "openvino-int8"), ("w1_c16", "w2")),
    Run("llamacpp", "int8", str(PLACE / "llamacpp-q8_0.gguf"), ("w2",), _LLAMA_SERVER),
    Run("blockyard", "int4", str(MODEL), ("w2",)),
    Run("llamacpp", "int4", str(GGUF), ("w2",), _LLAMA_SERVER),
)
"""In the order in which they take turns."""


def compare(
    runs: list[Run], rounds: int, threads: int, workloads: list[str], more: bool = False
) -> dict[str, Any]:
    """Install what is missing, measure in turns, and put the medians together.

    With `more` these rounds are added to those measured before.
    """
    lines_path = PLACE / "lines.jsonl"
    if not more:
        lines_path.unlink(missing_ok=True)
    before = 1 + max((line["pass"] for line in _read(lines_path)), default=-1)
    for name in workloads:
        _write_workload(name)
    for run in runs:
        if run.peer != "blockyard":
            install(run.peer, MODEL)
    for number in range(before, before + rounds):
        for run in runs:
            served = [name for name in run.workloads if name in workloads]
            if served:
                print(f"round {number + 1}: {run.peer} {run.label}", flush=True)
                _measure(run, served, number, threads, lines_path)
    return _put_together(_read(lines_path), threads, before + rounds)


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _write_workload(name: str) -> None:
    workload = make_workload(name)
    requests = [
        {"id": number, "prompt": request.prompt, "max_tokens": request.max_tokens}
        for number, request in enumerate(workload.requests)
    ]
    text = json.dumps(
        {
            "name": name,
            "concurrency": workload.concurrency,
            "repeat": workload.repeats,
            "requests": requests,
        }
    )
    (PLACE / f"{name}.json").write_text(text, encoding="utf-8")


def _measure(run: Run, workloads: list[str], number: int, threads: int, out: Path) -> None:
    """One pass by one server; one that fails is told and left out."""
    python = sys.executable if run.peer == "blockyard" else PLACE / run.peer / "bin" / "python"
    command = [
        *(str(python), str(HERE / f"drive_{run.peer}.py"), "--model", run.model),
        *("--label", run.label, "--threads", str(threads), "--first-pass", str(number)),
        *("--out", str(out), "--workload", *(str(PLACE / f"{name}.json") for name in workloads)),
        *run.options,
    ]
    log = PLACE / f"{run.peer}-{run.label}.log"
    with log.open("a", encoding="utf-8") as told:
        ran = subprocess.run(command, stdout=told, stderr=told, check=False)
    if ran.returncode:
        print(f"  failed with {ran.returncode}; see {log}", flush=True)


def _put_together(lines: list[dict[str, Any]], threads: int, rounds: int) -> dict[str, Any]:
    pool = load_library().pool(threads)
    ceilings = {storage.value: measure_ceilings(pool, storage) for storage in WeightStorage}
    rows = []
    for key in sorted({(line["workload"], line["label"], line["peer"]) for line in lines}):
        own = [line for line in lines if (line["workload"], line["label"], line["peer"]) == key]
        rows.append(
            {
                **dict(zip(("workload", "weights", "server"), key, strict=True)),
                "version": own[-1]["version"],
                **{figure: round(median(one[figure] for one in own), 3) for figure in _FIGURES},
                "other_cores": max(one["other_cores"] for one in own),
                "passes": len(own),
                "floor_ratio": round(
                    median(one["seconds"] for one in own) / _floor(*key[:2], ceilings[key[1]]), 3
                ),
            }
        )
    for row in rows:
        rivals = [
            other["output_tokens_per_s"]
            for other in rows
            if other["server"] != "blockyard"
            and (other["workload"], other["weights"]) == (row["workload"], row["weights"])
        ]
        if row["server"] == "blockyard" and rivals:
            row["times_best_peer"] = round(row["output_tokens_per_s"] / max(rivals), 3)
    return {
        "cpu": _cpu_name(),
        "date": datetime.date.today().isoformat(),
        "threads": threads,
        "rounds": rounds,
        "ceilings": {label: asdict(one) for label, one in ceilings.items()},
        "rows": rows,
    }


def _floor(name: str, label: str, ceilings: Ceilings) -> float:
    work = decoder_work(str(MODEL), 0)
    head_bits = _WEIGHT_BITS["int8"] if label == "int4" else _WEIGHT_BITS[label]
    bits = work.layer_operations * _WEIGHT_BITS[label] + work.head_operations * head_bits
    work = replace(work, weight_bytes=int(bits / 2 / 8))  # two operations a weight
    return floor_seconds(make_workload(name), work, ceilings)


def _cpu_name() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return found[1] if found else "unknown"


def show(result: dict[str, Any]) -> None:
    """Print the comparison as a Markdown table."""
    columns = ("workload", "weights", "server", *_FIGURES, "floor_ratio", "times_best_peer")
    print("| " + " | ".join(columns) + " |")
    print("|" + " --- |" * len(columns))
    for row in result["rows"]:
        print("| " + " | ".join(str(row.get(column, "")) for column in columns) + " |")


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw output tokens a second, by workload and precision."""
    from matplotlib.figure import Figure

    groups = sorted({(row["workload"], row["weights"]) for row in result["rows"]})
    figure = Figure(figsize=(9, 1 + 1.1 * len(groups)), layout="constrained")
    axes = figure.subplots(len(groups), 1, squeeze=False)[:, 0]
    for axis, (workload, weights) in zip(axes, groups, strict=True):
        rows = [row for row in result["rows"] if row["workload"] == workload]
        rows = [row for row in rows if row["weights"] == weights]
        colours = ["tab:blue" if row["server"] == "blockyard" else "silver" for row in rows]
        names = [row["server"] for row in rows]
        axis.barh(names, [row["output_tokens_per_s"] for row in rows], color=colours)
        axis.set_title(f"{workload}, {weights}: output tokens/s", fontsize=9, loc="left")
    figure.savefig(path)


def main() -> None:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--workloads", nargs="*", default=list(_ALL))
    parser.add_argument("--out", type=Path, help="folder of the results", default=RESULTS)
    parser.add_argument("--more", action="store_true", help="add rounds to those measured before")
    options = parser.parse_args()
    PLACE.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    features = processor_features()
    runs = [run for run in RUNS if run.peer in ("blockyard", *options.peers)]
    runs = [run for run in runs if not run.needs or run.needs in features]
    if options.workloads == ["smoke"]:
        runs = [Run(one.peer, one.label, one.model, ("smoke",), one.options) for one in runs]
    result = compare(runs, options.rounds, options.threads, options.workloads, options.more)
    show(result)
    name = re.sub(r"\W+", "-", result["cpu"]).strip("-").lower()
    path = options.out / f"peers-{name}-{result['date']}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    plot(result, path.with_suffix(".png"))
    print(f"written: {path}")


if __name__ == "__main__":
    main()
