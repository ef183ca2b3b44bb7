"""Plants faults in the scheduler, one at a time, and shows that the tests find every one.

    python benchmarks/mutation_scheduler.py [NAME ...]

Each fault of `mutation_faults.toml` replaces an exact text, once, in a temporary copy of the tree;
the scheduler's tests must then fail: those named after the file, which mostly know at once, then
the others by hand, then the random ones. Exit codes: 0 all found, 1 one survived, 2 the check
itself is out of date: a text is no longer there, or the tests fail without any fault.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Fault", "main", "plant", "read_faults"]

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("blockyard", "scheduler", "workers", "tests/scheduler", "pyproject.toml")
MACHINE = "tests/scheduler/test_scheduler_machine.py"
# Plans and replays use the scheduler but say nothing of it.
ELSEWHERE = ("replay", "planner", "measure", "arrivals", "shadow", "waste")
FOLDERS_ELSEWHERE = ("capacity", "contiguous", "simulated")
LONGEST_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake that somebody could make: `before`, which stands once in `file`, is replaced."""

    name: str
    file: str
    before: str
    after: str


def read_faults() -> tuple[Fault, ...]:
    """All faults, from the file beside this one."""
    with Path(__file__).with_name("mutation_faults.toml").open("rb") as file:
        return tuple(Fault(**fault) for fault in tomllib.load(file)["faults"])


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
    faults = [f for f in read_faults() if not names or any(name in f.name for name in names)]
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
            found = _run_tests_of(root, Path(fault.file).stem) or _run_tests(root)
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


def _run_tests_of(root: Path, module: str) -> str:
    """The first test that fails of those named after a module, or in a folder of its name."""
    folder = root / "tests" / "scheduler"
    tests = sorted((*folder.rglob(f"test_{module}*.py"), *(folder / module).glob("test_*.py")))
    tests = list(dict.fromkeys(tests))
    names = [str(test.relative_to(root)) for test in tests if "machine" not in test.name]
    return _first_failure(root, *names) if names else ""


def _run_tests(root: Path) -> str:
    """The first test that fails; empty when all pass."""
    left_out = [f"--ignore-glob=*test_{name}*" for name in (*ELSEWHERE, "scheduler_machine")]
    left_out += [f"--ignore=tests/scheduler/{name}" for name in FOLDERS_ELSEWHERE]
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
