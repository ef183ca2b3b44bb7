"""Plants faults in the scheduler, one at a time, and shows that the tests find every one.

    python benchmarks/mutation_scheduler.py [NAME ...]

Each fault replaces an exact text, once, in a temporary copy of the tree; the scheduler's tests must
then fail, first those by hand, then the random ones. Exit codes: 0 all found, 1 one survived, 2 the
check itself is out of date: a text is no longer there, or the tests fail without any fault.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FAULTS", "Fault", "main", "plant"]

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("blockyard", "scheduler", "workers", "tests/scheduler", "pyproject.toml")
MACHINE = "tests/scheduler/test_scheduler_machine.py"
# Plans and replays use the scheduler but say nothing of it.
ELSEWHERE = ("replay", "planner", "contiguous", "measure", "arrivals", "shadow", "waste")
LONGEST_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake that somebody could make: `before`, which stands once in `file`, is replaced."""

    name: str
    file: str
    before: str
    after: str


FAULTS = (
    Fault(
        "a block is given out while a step may still touch it",
        "scheduler/block_pool.py",
        "        if fence > self._acknowledged:\n",
        "        if False:\n",
    ),
    Fault(
        "the last to leave a shared block decides its fence alone",
        "scheduler/block_pool.py",
        "                touched[block_id] = fence_step\n",
        "                pass\n",
    ),
    Fault(
        "a shared block is freed by its first holder",
        "scheduler/block_pool.py",
        "            references[block_id] = left = references[block_id] - 1\n",
        "            references[block_id] = left = 0\n",
    ),
    Fault(
        "sharing forgets to count the new holder",
        "scheduler/block_pool.py",
        "            references[block_id] += 1\n",
        "            references[block_id] += not references[block_id]\n",
    ),
    Fault(
        "a block is published before its step is committed",
        "scheduler/prefix_cache.py",
        "done = request.num_computed // self._block_size",
        "done = len(request.tokens) // self._block_size",
    ),
    Fault(
        "the key forgets adapter, salt and weights",
        "scheduler/block_keys.py",
        "        if value:\n",
        "        if False:\n",
    ),
    Fault(
        "a hit is believed without comparing tokens",
        "scheduler/prefix_index.py",
        "entry.parent is not parent or entry.tokens != blocks[index]:",
        "entry.parent is not parent:",
    ),
    Fault(
        "a hit is believed whatever came before it",
        "scheduler/prefix_index.py",
        "entry.parent is not parent or entry.tokens != blocks[index]:",
        "entry.tokens != blocks[index]:",
    ),
    Fault(
        "a match taken at an earlier try is kept although its blocks are gone",
        "scheduler/prefix_index.py",
        "        while path and path[-1].block_id == GONE:\n            path.pop()\n",
        "",
    ),
    Fault(
        "a prompt that is cached whole leaves nothing to compute",
        "scheduler/prefix_cache.py",
        "most = (len(request.tokens) - 1) // self._block_size",
        "most = len(request.tokens) // self._block_size",
    ),
    Fault(
        "a host block is reused while it is still being read",
        "scheduler/host_blocks.py",
        "            self._release(host_id, step)\n",
        "            self._release(host_id, 0)\n",
    ),
    Fault(
        "swapped blocks come back in the wrong order",
        "scheduler/host_blocks.py",
        "self._ins += map(BlockCopy, back, block_ids)",
        "self._ins += map(BlockCopy, reversed(back), block_ids)",
    ),
    Fault(
        "a copy out is carried out although its host block was let go",
        "scheduler/host_blocks.py",
        "pending = self._outs.pop(host_id, None)",
        "pending = self._outs.get(host_id)",
    ),
    Fault(
        "a parent is reclaimed before the blocks that follow it",
        "scheduler/block_table.py",
        "        given_up.reverse()\n",
        "",
    ),
    Fault(
        "a block revived behind its fence loses it",
        "scheduler/block_pool.py",
        "        self._touched[block_id] = fence\n",
        "",
    ),
    Fault(
        "an equal block takes the place of another without the workers being told",
        "scheduler/batch.py",
        "self._replacements.append(Replacement(request.handle, index, block_id))\n        self.",
        "pass\n        self.",
    ),
    Fault(
        "a new choice counts no reference of its own",
        "scheduler/holdings.py",
        "        self._pool.share(parent.table.block_ids)\n",
        "",
    ),
    Fault(
        "a choice writes to a block that others share",
        "scheduler/holdings.py",
        "        return self._pool.references(table.block_ids[-1]) > 1\n",
        "        return False\n",
    ),
    Fault(
        "a shared block may be given out while it is being copied",
        "scheduler/holdings.py",
        "        self._pool.release((shared,), step)\n",
        "        self._pool.release((shared,), request.last_step)\n",
    ),
    Fault(
        "a choice is not told that an equal block took the place of its parent's",
        "scheduler/batch.py",
        "                if late.handle == parent.handle\n",
        "                if False\n",
    ),
    Fault(
        "what a parked request holds is never taken back",
        "scheduler/parking.py",
        "if not self._holders or self._holders[-1].urgency <= needy.urgency:",
        "if True:",
    ),
    Fault(
        "an older equal is preempted for a younger one",
        "scheduler/preemption.py",
        "return last if needy.urgency < last.urgency else None",
        "return last if needy is not last else running[0] if len(running) > 1 else None",
    ),
    Fault(
        "a big request is passed for ever",
        "scheduler/packing.py",
        "request.times_passed < MAX_TIMES_PASSED",
        "request.times_passed < 10**9",
    ),
    Fault(
        "who was parked queues up behind the others",
        "scheduler/queues.py",
        "if parked is not None and (waiting is None or parked.sequence < waiting.sequence):",
        "if parked is not None and waiting is None:",
    ),
    Fault(
        "a tenant keeps its turn although it was charged since",
        "scheduler/queues.py",
        "            self._head = None\n\n    def charged",
        "\n    def charged",
    ),
    Fault(
        "who arrives waits for a turn that was found before",
        "scheduler/queues.py",
        "        self._head = None\n        self._members[request.member] = request\n",
        "        self._members[request.member] = request\n",
    ),
    Fault(
        "a tenant is charged for its first token only",
        "scheduler/fairness.py",
        "self._charged[tenant] = self.charged(tenant) + cost",
        "self._charged[tenant] = self.charged(tenant) or cost",
    ),
)


class OutOfDate(Exception):
    """The check can not be made: it does not fit the tree."""


def plant(root: Path, fault: Fault) -> str:
    """Put a fault into the tree at `root`; returns the file's text before.

    Raises:
        OutOfDate: the text to replace does not stand there exactly once.
    """
    path = root / fault.file
    text = path.read_text(encoding="utf-8")
    found = text.count(fault.before)
    if found != 1:
        raise OutOfDate(
            f"{fault.name}: {fault.file} has the text to replace {found} times, not once:\n"
            f"{fault.before}"
        )
    path.write_text(text.replace(fault.before, fault.after), encoding="utf-8")
    return text


def main(names: list[str]) -> int:
    """Plant each fault, or those whose name contains one of `names`; print a table."""
    faults = [f for f in FAULTS if not names or any(name in f.name for name in names)]
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="blockyard-mutation-") as folder:
        root = Path(folder)
        _copy_tree(root)
        try:
            for fault in faults:  # all texts are looked for before the long work begins
                before = plant(root, fault)
                (root / fault.file).write_text(before, encoding="utf-8")
            found = _run_tests(root)
            if found:
                raise OutOfDate(f"the tests fail without any fault: {found}")
        except OutOfDate as error:
            print(error, file=sys.stderr)
            return 2
        for fault in faults:
            began = time.monotonic()
            before = plant(root, fault)
            found = _run_tests(root)
            (root / fault.file).write_text(before, encoding="utf-8")
            survivors += not found
            verdict = f"found by {found}" if found else "SURVIVED"
            print(f"{time.monotonic() - began:5.0f} s  {fault.name}: {verdict}", flush=True)
    print(f"{len(faults) - survivors} of {len(faults)} faults were found")
    return 1 if survivors else 0


def _copy_tree(root: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
    for name in COPIED:
        source, target = ROOT / name, root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, target)


def _run_tests(root: Path) -> str:
    """The first test that fails; empty when all pass."""
    left_out = [f"--ignore-glob=*test_{name}*" for name in (*ELSEWHERE, "scheduler_machine")]
    return _first_failure(root, "tests/scheduler", *left_out) or _first_failure(
        root, MACHINE, "--hypothesis-seed=0"
    )


def _first_failure(root: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(
            [*command, "-p", "no:cacheprovider", "--tb=no"],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end of {arguments[0]} within {LONGEST_SECONDS} s"
    if ran.returncode == 0:
        return ""
    if ran.returncode != 1:
        raise OutOfDate(f"pytest could not run: {ran.stdout}{ran.stderr}")
    failed = [line.split()[1] for line in ran.stdout.splitlines() if line.startswith("FAILED")]
    return failed[0].removeprefix("tests/scheduler/") if failed else "a test"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
