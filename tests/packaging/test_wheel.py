"""The wheel, built through the sdist from what git tracks, holds the package and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("cluster", "cuda", "protos", "scheduler", "workers")
NOT_INSTALLED = (".md", ".sh")  # for readers and builders of the tree
EMULATOR = "cuda/emulator/"  # builds kernels for tests of a clone


def tracked(*folders: str) -> list[str]:
    """Paths git tracks, as far as they are in the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [path for path in listed.stdout.split("\0") if path and (ROOT / path).exists()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    tree = tmp_path_factory.mktemp("tree")
    for path in tracked():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, tree / path, follow_symlinks=False)
    built = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (tree / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        yield archive


@pytest.fixture(scope="module")
def names(wheel: zipfile.ZipFile) -> set[str]:
    return set(wheel.namelist())


def test_the_package_is_whole(names: set[str]) -> None:
    """What git tracks in the five folders is installed."""
    wanted = {
        f"blockyard/{path}"
        for path in tracked(*LINKED)
        if not path.endswith(NOT_INSTALLED) and not path.startswith(EMULATOR)
    }
    assert wanted - names == set()
    assert {"blockyard/__init__.py", "blockyard/__main__.py", "blockyard/py.typed"} <= names


@pytest.mark.parametrize("name", ["cluster", "protos", "scheduler", "workers"])
def test_each_part_brings_modules(names: set[str], name: str) -> None:
    brought = {path for path in names if path.startswith(f"blockyard/{name}/")}
    assert f"blockyard/{name}/__init__.py" in brought
    assert len([path for path in brought if path.endswith(".py")]) > 1


@pytest.mark.parametrize("ending", [".proto", "_pb2.py", "_pb2.pyi", "_pb2_grpc.py"])
def test_the_contract_and_its_stubs_are_inside(names: set[str], ending: str) -> None:
    assert [
        path for path in names if path.startswith("blockyard/protos/") and path.endswith(ending)
    ]


def test_nothing_else_is_inside(names: set[str]) -> None:
    roots = {path.partition("/")[0] for path in names}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"blockyard"}
    folders = {path.split("/")[1] for path in names if path.startswith("blockyard/")}
    assert folders <= {"__init__.py", "__main__.py", "py.typed", *LINKED}
    assert not [path for path in names if "test_" in path or "__pycache__" in path]
    assert "blockyard/cuda/__init__.py" not in names
    assert not [path for path in names if path.startswith(f"blockyard/{EMULATOR}")]


def test_the_command_and_the_licence_come_along(wheel: zipfile.ZipFile, names: set[str]) -> None:
    (commands,) = (path for path in names if path.endswith(".dist-info/entry_points.txt"))
    assert "blockyard = blockyard.cluster.cli:main" in wheel.read(commands).decode()
    (licence,) = (path for path in names if path.endswith("/LICENSE"))
    assert "Apache License" in wheel.read(licence).decode()
