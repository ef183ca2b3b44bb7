"""One command for one GPU: checks every kernel, measures it beside its rivals, writes what it saw.

    python benchmarks/gpu/check.py            # on a card: under 8 minutes
    python benchmarks/gpu/check.py --cpu      # the rehearsal: kernels in the emulation, tiny sizes

Needs torch, cupy, numpy and transformers, and nothing to be installed of Blockyard. Each part runs
under a fence and a budget of its own; the results are rewritten after each. Parts share a process
until one breaks it: a card that has seen an illegal access, or a part that hangs, gets a new
process for the parts that remain. Exits with 1 when a kernel is wrong or a part has failed.
"""

import argparse
import datetime
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from plan import PARTS, Part
from table import markdown

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]
REHEARSAL_FACTOR = 4.0
"""A CPU compiles each kernel anew and runs it thread by thread; sizes make up for most of it."""

HANGS_AFTER = 1.5
"""Parts look at their budget between cases; one that is this much over it does not any more."""

Document = dict[str, Any]


class Results:
    """The document, and its files, which are rewritten whenever it changes."""

    def __init__(self, folder: Path, document: Document) -> None:
        self._folder = folder
        self.document = document

    @property
    def stem(self) -> str:
        """The card's name and the day."""
        device = self.document["device"] or "none"
        name = "-".join(device.lower().replace("/", " ").split())
        return f"{name}-{self.document['started'][:10]}"

    def save(self) -> Path:
        """Write both files whole, once there is a device; returns the JSON's path."""
        path = self._folder / f"{self.stem}.json"
        if self.document["device"] is None:
            return path
        self._folder.mkdir(parents=True, exist_ok=True)
        for target, text in (
            (path.with_suffix(".md"), markdown(self.document)),
            (path, json.dumps(self.document, indent=1) + "\n"),
        ):
            partial = target.with_name(target.name + ".partial")
            partial.write_text(text, encoding="utf-8")
            partial.replace(target)
        return path


def main() -> int:
    """Run the parts; the exit status."""
    options = _options()
    chosen = [part for part in PARTS if not options.parts or part.name in options.parts]
    folder = Path(
        options.out or ROOT / ("build/gpu-check" if options.cpu else "benchmarks/results")
    )
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    results = Results(
        folder,
        {
            "started": now,
            "rehearsal": options.cpu,
            "budget_seconds": options.budget,
            "device": None,
            "parts": [{"name": part.name, "state": "not run", "rows": []} for part in chosen],
        },
    )
    began = time.monotonic()
    remaining = list(chosen)
    while remaining:
        remaining = _run(remaining, results, options, began + options.budget)
        if results.document["device"] is None:
            print("no device to check: see above; nothing was written", file=sys.stderr)
            return 2
    results.document["seconds"] = round(time.monotonic() - began, 1)
    path = results.save()
    wrong = objections(results.document)
    for objection in wrong:
        print(objection)
    print(f"{path} after {results.document['seconds']} s, {len(wrong) or 'no'} objections")
    return 1 if wrong else 0


def objections(document: Document) -> list[str]:
    """What makes the check fail: wrong results, and parts that ended in an error."""
    found = [
        f"{part['name']}: {part.get('message', part['state'])}"
        for part in document["parts"]
        if part["state"] == "failed"
    ]
    found += [
        f"{part['name']}: {row}"
        for part in document["parts"]
        for row in part["rows"]
        if row.get("correct") is False or "failed" in row
    ]
    return found


def _run(
    parts: Sequence[Part], results: Results, options: argparse.Namespace, until: float
) -> list[Part]:
    """Run parts in one process until it ends; those that still have to be run."""
    by_name = {part["name"]: part for part in results.document["parts"]}
    factor = REHEARSAL_FACTOR if options.cpu else 1.0
    remaining = list(parts)
    receiver, sender = os.pipe()
    child = subprocess.Popen(
        [
            *(sys.executable, str(Path(__file__).with_name("child.py"))),
            *(["--cpu"] if options.cpu else []),
            *("--pipe", str(sender)),
            *("--until", str(until), "--factor", str(factor)),
            *(part.name for part in parts),
        ],
        stdin=subprocess.PIPE,
        pass_fds=(sender,),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *_python_path()])},
    )
    os.close(sender)
    assert child.stdin is not None
    with suppress(BrokenPipeError), child.stdin as known:  # too long for an argument
        known.write(json.dumps(results.document).encode())
    state: Document | None = None
    kill_at = time.monotonic() + 120  # to import torch and to find the device
    message = ""
    with os.fdopen(receiver, "rb") as pipe:
        for event in _events(pipe.fileno()):
            if event is None:
                if time.monotonic() > kill_at:
                    message = "it hangs"
                    child.kill()
                    break
                continue
            if event["event"] == "begin":
                state = by_name[event["part"]]
                state["state"] = "running"
                kill_at = time.monotonic() + HANGS_AFTER * event["seconds"] + 20
                continue
            if event["event"] == "device":
                results.document["device"] = event["name"]
                continue
            assert state is not None
            if event["event"] == "row":
                state["rows"].append(event["row"])
                continue
            _end(state, event, results)
            remaining = [part for part in remaining if part.name != state["name"]]
            state = None
            kill_at = time.monotonic() + 30
    status = child.wait()
    if state is None and remaining and (status or message):
        state = by_name[remaining[0].name]  # it never began: the process could not be made
    if state is not None:
        message = message or f"its process ended with status {status}"
        _end(state, {"state": "failed", "message": message, "seconds": None}, results)
        remaining = [part for part in remaining if part.name != state["name"]]
    return remaining


def _end(state: Document, event: Document, results: Results) -> None:
    state["state"], state["seconds"] = event["state"], event["seconds"]
    if event.get("message"):
        state["message"] = event["message"]
    told = [f"{len(state['rows'])} rows", f"{state['seconds']} s"]
    wrong = sum(row.get("correct") is False for row in state["rows"])
    told += [f"{wrong} wrong"] if wrong else []
    told += (event.get("message") or "").strip().splitlines()[-1:]
    print(f"{state['name']}: {state['state']}: {', '.join(told)}", flush=True)
    results.save()


def _events(descriptor: int) -> Iterator[Document | None]:
    """What the child says, line by line; None at least once a second, until it has ended."""
    waiting = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], 1.0)
        yield None
        if not ready:
            continue
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return
        *lines, waiting = (waiting + piece).split(b"\n")
        for line in lines:
            yield json.loads(line)


def _python_path() -> list[str]:
    return [path for path in (os.environ.get("PYTHONPATH"),) if path]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--cpu", action="store_true", help="rehearse on a machine without a GPU")
    parser.add_argument("--budget", type=float, default=470.0, help="seconds for all parts")
    parser.add_argument("--out", help="folder of the results")
    names = [part.name for part in PARTS]
    parser.add_argument("parts", nargs="*", help=f"only these of {names}")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(names))
    if unknown:
        parser.error(f"there is no part {unknown}; there are {names}")
    return options


if __name__ == "__main__":
    sys.exit(main())
