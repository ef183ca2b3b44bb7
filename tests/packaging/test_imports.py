"""Imports go one way. The rules are data; a planted violation of each proves the checker."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ("scheduler", "workers", "cuda", "cluster", "protos")
SEARCHED = ("blockyard", *CODE, "tests", "benchmarks")
# What NVIDIA keeps below its own top-level `cuda`.
NVIDIA_CUDA = ("bindings", "ccl", "compute", "coop", "core", "nvrtc", "pathfinder", "tile")

# Which of our own modules a folder may import; a name allows what lies below it.
INWARD: dict[str, tuple[str, ...]] = {
    "blockyard": ("blockyard.cluster",),
    "scheduler": ("blockyard.scheduler",),
    "cuda": ("blockyard.cuda",),
    "protos": ("blockyard.protos",),
    "workers": (
        "blockyard.workers",
        "blockyard.cuda",
        "blockyard.scheduler.plan",
        "blockyard.scheduler.sampling",
        "blockyard.scheduler.config",
    ),
    "cluster": (
        "blockyard.cluster",
        "blockyard.workers",
        "blockyard.scheduler",
        "blockyard.protos",
        "blockyard.__version__",
    ),
}

# Who alone may import a third-party package (tests and benchmarks may import anything).
OUTWARD: dict[str, tuple[str, ...]] = {
    "ray": ("cluster/",),
    "grpc": ("cluster/", "protos/"),
    "grpc_health": ("cluster/",),
    "grpc_reflection": ("cluster/",),
    "grpc_status": ("cluster/",),
    "fastapi": ("cluster/",),
    "starlette": ("cluster/",),
    "transformers": ("workers/model.py", "workers/loader.py", "workers/checkpoint_names.py"),
}

# Files that must stay free of a package although their folder may use it.
BARRED: dict[str, tuple[str, ...]] = {
    "cluster/engine.py": ("ray", "grpc", "grpc_health", "grpc_reflection", "grpc_status"),
    "cluster/ingress.py": ("torch",),
    "cluster/grpc_api.py": ("torch", "ray"),
    "cluster/http_api.py": ("torch", "ray"),
    "cluster/tokenizer.py": ("torch", "ray"),
    "cluster/client.py": ("torch", "ray"),
}

# The only packages, beside the standard library, for a folder that needs no more.
STANDARD_AND: dict[str, tuple[str, ...]] = {
    "blockyard": ("blockyard",),
    "scheduler": ("blockyard", "numpy"),
}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: `from a.b import c` is `a.b.c`. `level` counts leading dots."""

    name: str
    line: int
    level: int = 0


def imports_of(source: str) -> Iterator[Import]:
    """Every import of a file, wherever it stands: in functions and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import(f"{node.module or ''}.{alias.name}", node.lineno, node.level)
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            called = node.func.id if isinstance(node.func, ast.Name) else called
            first = node.args[0]
            if (
                called in ("import_module", "__import__")
                and isinstance(first, ast.Constant)
                and isinstance(first.value, str)
            ):
                yield Import(first.value, node.lineno)


def lies_in(name: str, allowed: str) -> bool:
    return name == allowed or name.startswith(f"{allowed}.")


def objections(path: str, found: Import) -> Iterator[str]:
    """What is wrong with an import, for a file named relative to the root."""
    top, _, rest = found.name.partition(".")
    folder = path.partition("/")[0]
    if found.level:
        yield "relative; write the full name"
        return
    nvidia = top == "cuda" and rest.partition(".")[0] in NVIDIA_CUDA
    if top in CODE and not nvidia:
        yield f"bare; write blockyard.{top}"
    if folder not in INWARD:
        return
    if top == "blockyard":
        if not any(lies_in(found.name, allowed) for allowed in INWARD[folder]):
            yield f"against the direction: {folder}/ may import only {', '.join(INWARD[folder])}"
    elif top not in sys.stdlib_module_names and top not in STANDARD_AND.get(folder, (top,)):
        yield f"{folder}/ needs only the standard library and {STANDARD_AND[folder]}"
    if top in OUTWARD and not path.startswith(OUTWARD[top]):
        yield f"only {', '.join(OUTWARD[top])} may import {top}"
    if top in BARRED.get(path, ()):
        yield f"{path} must stay free of {top}"


def violations(root: Path) -> list[str]:
    """All objections to the Python files below `root`; links are not followed."""
    report = []
    for folder in SEARCHED:
        for place, _, names in os.walk(root / folder):
            for file in (Path(place, name) for name in sorted(names) if name.endswith(".py")):
                path = file.relative_to(root).as_posix()
                for found in imports_of(file.read_text(encoding="utf-8")):
                    report += [
                        f"{path}:{found.line}: {found.name}: {objection}"
                        for objection in objections(path, found)
                    ]
    return report


def test_every_import_keeps_the_rules() -> None:
    assert violations(ROOT) == []


PLANTED = [
    ("cluster/a.py", "import scheduler.plan", "bare"),
    ("tests/scheduler/test_a.py", "from cluster import engine", "bare"),
    ("benchmarks/a.py", "def f() -> None:\n    import workers", "bare"),
    ("cluster/a.py", "import cuda", "bare"),
    ("cluster/a.py", "from cuda.launch import launch", "bare"),
    ("scheduler/a.py", "from .plan import StepPlan", "relative"),
    ("scheduler/a.py", "from blockyard import workers", "direction"),
    ("scheduler/a.py", "import blockyard.cluster.wire", "direction"),
    ("scheduler/a.py", "import torch", "standard library"),
    ("scheduler/a.py", "import msgspec", "standard library"),
    ("scheduler/a.py", "import ray", "only cluster/"),
    ("workers/a.py", "from blockyard.scheduler.request import Request", "direction"),
    ("workers/a.py", "from blockyard.scheduler import scheduler", "direction"),
    ("workers/a.py", "from blockyard.scheduler.planner import plan", "direction"),
    ("workers/a.py", "import blockyard.scheduler", "direction"),
    ("workers/a.py", "from blockyard.cluster.wire import connect", "direction"),
    ("workers/a.py", "from blockyard.protos import generate_pb2", "direction"),
    ("workers/a.py", "import ray", "only cluster/"),
    ("workers/a.py", "def f() -> None:\n    import grpc.aio", "only cluster/"),
    ("workers/a.py", "from fastapi import FastAPI", "only cluster/"),
    ("workers/attention.py", "import transformers", "only workers/model.py"),
    ("cluster/a.py", "from transformers import AutoTokenizer", "only workers/model.py"),
    ("cuda/launch.py", "from blockyard.workers.config import WorkerConfig", "direction"),
    ("cluster/a.py", "from blockyard.cuda import launch", "direction"),
    ("protos/__init__.py", "import blockyard.cluster", "direction"),
    ("blockyard/__init__.py", "import torch", "standard library"),
    ("blockyard/__init__.py", "from blockyard.workers import model", "direction"),
    ("cluster/engine.py", "import ray", "must stay free"),
    ("cluster/engine.py", "import grpc", "must stay free"),
    ("cluster/ingress.py", "import torch.nn", "must stay free"),
    (
        "cluster/engine.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ray import ObjectRef",
        "must stay free",
    ),
    ("scheduler/a.py", "import importlib\nimportlib.import_module('ray')", "only cluster/"),
    ("workers/a.py", "__import__('ray')", "only cluster/"),
]

CLEAN = [
    ("scheduler/a.py", "import heapq\nimport numpy as np\nfrom blockyard.scheduler import plan"),
    ("workers/a.py", "import torch\nfrom blockyard.scheduler.plan import StepPlan"),
    ("workers/loader.py", "import transformers\nfrom blockyard.cuda import launch"),
    ("cuda/launch.py", "import cupy\nfrom cuda.bindings import driver"),
    ("cluster/engine.py", "from blockyard.scheduler.scheduler import Scheduler"),
    ("cluster/a.py", "import ray, grpc\nfrom blockyard import __version__"),
    ("tests/cluster/test_a.py", "import ray, torch, transformers\nimport blockyard.cuda.launch"),
]


def plant(root: Path, path: str, source: str) -> None:
    (root / path).parent.mkdir(parents=True)
    (root / path).write_text(source, encoding="utf-8")


@pytest.mark.parametrize(("path", "source", "objection"), PLANTED)
def test_a_planted_violation_is_found(
    tmp_path: Path, path: str, source: str, objection: str
) -> None:
    plant(tmp_path, path, source)
    assert any(objection in found for found in violations(tmp_path)), violations(tmp_path)


@pytest.mark.parametrize(("path", "source"), CLEAN)
def test_what_the_rules_allow_passes(tmp_path: Path, path: str, source: str) -> None:
    plant(tmp_path, path, source)
    assert violations(tmp_path) == []


# What importing a module may not load, also through what that module imports.
STAYS_UNLOADED = [
    ("blockyard", ("blockyard.", "numpy", "ray", "torch")),
    ("blockyard.scheduler", ("ray", "torch", "blockyard.workers", "blockyard.cluster")),
    ("blockyard.cluster.engine", ("ray", "grpc", "torch", "transformers")),
    ("blockyard.cluster.tokenizer", ("ray", "torch", "transformers")),
    ("blockyard.cluster.grpc_api", ("torch", "transformers")),
    ("blockyard.cluster.ingress", ("torch", "transformers")),
    ("blockyard.cluster.cli", ("ray", "torch", "transformers")),
]


@pytest.mark.parametrize(("module", "heavy"), STAYS_UNLOADED)
def test_importing_stays_light(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import {module}, sys; print(*sys.modules, sep='\\n')"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    loaded = ran.stdout.split()
    assert [name for name in loaded if name.startswith(heavy)] == []
