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
KERNELS = (
    *("blocks", "cache", "cascade", "decode", "layers", "logprobs", "penalties", "prefill"),
    *("sampling", "warpgroups"),
)
OUTSIDE = (
    *("blocks:1", "cache:1", "decode:2", "layers:3", "penalties:33", "prefill:12"),
    "warpgroups:43",
)
"""One row too far."""

RACES = ("decode:1", "decode:3", "layers:1", "logprobs:31", "prefill:11", "sampling:1")
"""Missing barriers, and in decode a missing wait."""


def sanitized(sanitizer: str, *runs: str) -> tuple[int, dict[str, str]]:
    """Run kernels in a process of its own: its exit status, and what each run reported."""
    missing = missing_tools() or (None if shutil.which("setarch") else "setarch is not installed")
    if missing is not None:
        pytest.skip(f"no emulation of kernels: {missing}")
    subprocess.run([sys.executable, str(SCRIPT), "--build", sanitizer, *runs], check=True)
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
            # Planted faults, one after the other, show at the same places and addresses.
            "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=0:suppress_equal_pcs=0",
            "TSAN_OPTIONS": "exitcode=66:suppress_equal_addresses=0",
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


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_kernels_are_clean(sanitizer: str) -> None:
    status, reports = sanitized(sanitizer, *(f"{kernel}:0" for kernel in KERNELS))
    assert status == 0, reports
    assert list(reports) == [f"{kernel}:0" for kernel in KERNELS], reports
    assert not [name for name, text in reports.items() if "Sanitizer" in text], reports


def test_planted_accesses_outside_of_memory_are_reported() -> None:
    _, reports = sanitized("address", *OUTSIDE)
    for fault in OUTSIDE:
        report = reports.get(fault, "")
        assert "heap-buffer-overflow" in report, (fault, report[:4000])
        assert ".cu" in report, (fault, report[:4000])


def test_planted_races_are_reported() -> None:
    status, reports = sanitized("thread", *RACES)
    assert status == 66, list(reports)
    for fault in RACES:
        report = reports.get(fault, "")
        assert "data race" in report, (fault, report[:4000])
        assert ".cu:" in report, (fault, report[:4000])
