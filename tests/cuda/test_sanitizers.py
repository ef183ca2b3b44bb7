"""Kernels under the address and the thread sanitizer, and faults that each must report."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blockyard.cuda.emulator.build import missing_tools

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("sanitized_run.py")
KERNELS = ("blocks", "cache", "cascade", "decode", "layers", "prefill", "sampling")
OUTSIDE = ("blocks:1", "cache:1", "decode:2", "layers:3", "prefill:12")
"""One row too far; the sanitizer ends the process at the first such access."""

RACES = ("decode:1", "decode:3", "layers:1", "prefill:11", "sampling:1")
"""Missing barriers, and in decode a missing wait."""


def sanitized(sanitizer: str, *runs: str) -> tuple[int, dict[str, str]]:
    """Run kernels in a process of its own: its exit status, and what each run reported."""
    missing = missing_tools() or (None if shutil.which("setarch") else "setarch is not installed")
    if missing is not None:
        pytest.skip(f"no emulation of kernels: {missing}")
    library = subprocess.run(
        ["g++", f"-print-file-name=lib{sanitizer[0]}san.so"],
        capture_output=True,
        text=True,
        check=True,
    )
    ran = subprocess.run(
        # Without address randomisation: the sanitizers want fixed places.
        ["setarch", "-R", sys.executable, str(SCRIPT), sanitizer, *runs],
        env=os.environ
        | {
            "LD_PRELOAD": library.stdout.strip(),
            "PYTHONMALLOC": "malloc",
            "OMP_NUM_THREADS": "1",
            "ASAN_OPTIONS": "detect_leaks=0",
            "TSAN_OPTIONS": "exitcode=66",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    reports: dict[str, str] = {}
    name = "before the first run"
    for line in ran.stderr.splitlines():
        if line.startswith("== "):
            name = line.removeprefix("== ")
        reports[name] = reports.get(name, "") + line + "\n"
    return ran.returncode, reports


@pytest.mark.parametrize("fault", OUTSIDE)
def test_nothing_outside_shared_memory_is_touched_but_by_a_planted_fault(fault: str) -> None:
    status, reports = sanitized("address", *(f"{kernel}:0" for kernel in KERNELS), fault)
    assert not [name for name in reports if name != fault and "ERROR" in reports[name]], reports
    assert status != 0
    assert "heap-buffer-overflow" in reports[fault], reports
    assert ".cu" in reports[fault]


def test_no_kernel_has_a_race() -> None:
    status, reports = sanitized("thread", *(f"{kernel}:0" for kernel in KERNELS))
    assert status == 0, reports


# One process each: the sanitizer knows no lines of a library that is loaded after its first report.
@pytest.mark.parametrize("fault", RACES)
def test_a_planted_race_is_reported(fault: str) -> None:
    status, reports = sanitized("thread", fault)
    assert status == 66, reports
    assert "data race" in reports[fault], reports
    assert ".cu:" in reports[fault]
