"""The pool of threads under the thread sanitizer, and a planted fault that it finds."""

import subprocess
from pathlib import Path

import pytest

from blockyard.workers.cpu.compiler import SOURCES, NativeUnavailable, find_compiler

HERE = Path(__file__).parent


def build(headers: Path, target: Path) -> None:
    try:
        compiler = find_compiler()
    except NativeUnavailable as error:
        pytest.skip(str(error))
    command = [
        *(compiler.path, "-std=c++20", "-O1", "-g", "-mavx2", "-fsanitize=thread", "-pthread"),
        *(f"-I{headers}", str(HERE / "pool_stress.cpp"), "-o", str(target)),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find" in ran.stderr and "tsan" in ran.stderr:
        pytest.skip("the compiler has no thread sanitizer")
    assert ran.returncode == 0, ran.stderr


def run(program: Path) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run([program], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("the thread sanitizer does not run on this kernel")
    return ran


@pytest.mark.slow
def test_loops_are_free_of_races(tmp_path: Path) -> None:
    build(SOURCES, tmp_path / "stress")
    ran = run(tmp_path / "stress")
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
def test_a_planted_race_is_found(tmp_path: Path) -> None:
    text = (SOURCES / "thread_pool.hpp").read_text(encoding="utf-8")
    fault = text.replace("ended_.load(std::memory_order_acquire)", "chunks_.load()", 1)
    assert fault != text
    (tmp_path / "thread_pool.hpp").write_text(fault, encoding="utf-8")
    build(tmp_path, tmp_path / "stress")
    assert run(tmp_path / "stress").returncode != 0
