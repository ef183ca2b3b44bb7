"""Threads that have nothing to do sleep: ours, and those that torch starts."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from blockyard.workers.cpu.library import NativePool, load_library
from blockyard.workers.cpu.packed import PackedLinear, WeightStorage


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
def test_openmp_is_told_to_sleep_unless_told_otherwise(
    given: dict[str, str], expected: str
) -> None:
    mine = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    inherited = {name: value for name, value in os.environ.items() if name not in mine}
    code = (
        "import blockyard.workers, os, sys; "
        "print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, **given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == [expected, "False"]


def test_helpers_fall_asleep_after_a_loop(native_pool: NativePool) -> None:
    before = {int(task) for task in os.listdir("/proc/self/task")}
    pool = load_library().pool(3)
    layer = PackedLinear(pool, [torch.zeros(400, 64)], WeightStorage.FP32)
    for _ in range(3):
        layer.multiply(torch.zeros(9, 64))
        helpers = {int(task) for task in os.listdir("/proc/self/task")} - before
        assert len(helpers) == 2
        deadline = time.monotonic() + 60
        while any(_state(task) != "S" for task in helpers):
            assert time.monotonic() < deadline, "a helper does not sleep"


def _state(task: int) -> str:
    stat = Path(f"/proc/self/task/{task}/stat").read_text(encoding="utf-8")
    return stat.rsplit(")", 1)[1].split()[0]
