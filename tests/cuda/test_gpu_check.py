"""The check that runs on GPUs, rehearsed: from a bare checkout, and with parts that go wrong."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from blockyard.cuda.emulator.build import missing_tools

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "benchmarks" / "gpu"
NEEDED = (
    "cupy-cuda13x",
    "numpy",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "torch",
    "transformers",
)
"""What a bare checkout has: a card's torch brings NVRTC and the headers, a CPU's does not."""


def run(folder: Path, out: Path, *arguments: str, python: str = sys.executable) -> tuple[int, Any]:
    """Rehearse; the exit status and the document."""
    ran = subprocess.run(
        [python, str(folder / "check.py"), "--cpu", "--out", str(out), *arguments],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
        timeout=560,
    )
    (found,) = out.glob("rehearsal-*.json")
    assert found.with_suffix(".md").exists(), ran.stdout
    return ran.returncode, json.loads(found.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that finds those packages, what they need themselves, and no others."""
    missing = missing_tools()
    if missing is not None:
        pytest.skip(f"no emulation of kernels: {missing}")
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False)
    (site,) = (home / "lib").glob("python*/site-packages")
    waiting, seen = list(NEEDED), set[str]()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform
        for top in {file.parts[0] for file in package.files or () if file.parts[0] != ".."}:
            link(Path(str(package.locate_file(top))), site / top)
        for requirement in package.requires or ():
            if "extra ==" not in requirement:
                waiting.append(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])
    return str(home / "bin" / "python")


def link(source: Path, target: Path) -> None:
    """Packages of one namespace share a folder: its own are linked one by one."""
    if source.name in ("nvidia", "cuda"):
        for inner in source.iterdir():
            (target / inner.name).parent.mkdir(exist_ok=True)
            if not (target / inner.name).exists():
                (target / inner.name).symlink_to(inner)
    elif source.exists() and not target.exists():
        target.symlink_to(source)


def test_it_runs_from_a_bare_checkout(bare_python: str, tmp_path: Path) -> None:
    code = "import blockyard.workers.worker, blockyard.cluster.engine; import ray"
    tried = subprocess.run(
        [bare_python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "No module named 'ray'" in tried.stderr, tried.stderr
    status, document = run(GPU, tmp_path, "correct: blocks", "copy ceiling", python=bare_python)
    assert status == 0, document
    assert [part["state"] for part in document["parts"]] == ["done", "done"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_parts_pass(bare_python: str, tmp_path: Path) -> None:
    status, document = run(GPU, tmp_path, python=bare_python)
    assert status == 0, document
    assert [part["name"] for part in document["parts"] if part["state"] != "done"] == []
    # Each part has told something, and only what is not installed here was left out.
    skipped = [part["name"] for part in document["parts"] if "skipped" in part["rows"][0]]
    assert skipped == ["decode: FlashInfer"]
    ours = [row for part in document["parts"] for row in part["rows"] if "path" in row]
    assert {row["path"] for row in ours} >= {"transformers, SDPA", "blockyard, eager"}


PLAN = """
from dataclasses import dataclass
@dataclass
class Part:
    name: str
    seconds: float
    place: str
PARTS = tuple(Part(name, 10, f"planted:{name}") for name in ("wrong", "raises", "dies", "fine"))
PARTS += (Part("absent", 10, "not_there:any"),)
"""
PLANTED = """
import os
def wrong(context):
    context.row(correct=False)
def raises(context):
    context.row(before=1)
    raise ValueError("planted")
def dies(context):
    context.row(before=2)
    os._exit(3)
def fine(context):
    context.row(seen=[len(context.rows(name)) for name in ("wrong", "raises", "dies")])
"""


def test_no_part_takes_another_with_it(tmp_path: Path) -> None:
    """Wrong, failing and dying parts are told of, and the others run."""
    missing = missing_tools()
    if missing is not None:
        pytest.skip(f"no emulation of kernels: {missing}")
    copy = tmp_path / "benchmarks" / "gpu"
    shutil.copytree(GPU, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "plan.py").write_text(PLAN, encoding="utf-8")
    (copy / "planted.py").write_text(PLANTED, encoding="utf-8")
    status, document = run(copy, tmp_path / "out")
    assert status == 1
    parts = {part["name"]: part for part in document["parts"]}
    assert parts["wrong"]["state"] == "done"
    assert parts["wrong"]["rows"] == [{"correct": False}]
    assert "ValueError: planted" in parts["raises"]["message"]
    assert parts["raises"]["rows"] == [{"before": 1}]
    assert parts["dies"]["message"] == "its process ended with status 3"
    assert parts["dies"]["rows"] == [{"before": 2}]
    # In a process of its own, which knows what was found before it.
    assert parts["fine"]["rows"] == [{"seen": [1, 1, 1]}]
    assert "No module named 'not_there'" in parts["absent"]["message"]
