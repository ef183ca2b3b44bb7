"""A prepared directory is whole or not there, whatever happens to the process that prepares it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockyard.workers.model_store import MANIFEST_NAME, ModelStore

BUILD_IN_CHILD = """
import os, sys
from pathlib import Path
from blockyard.workers.model_store import ModelStore

root, how = Path(sys.argv[1]), sys.argv[2]

class Loud:
    def stage(self, name, total_bytes):
        print(name, flush=True)

    def advance(self, num_bytes):
        pass

def build(folder):
    (folder / "one.bin").write_bytes(b"1" * 1000)
    if how == "die":
        os._exit(9)
    with open(root / "builds", "a") as log:
        log.write("x")
    if how == "wait":
        print("building", flush=True)
        sys.stdin.readline()
    (folder / "two.bin").write_bytes(b"2" * 1000)

print(ModelStore(root).find_or_build("m", "1", build, Loud()))
"""


def _child(root: Path, how: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", BUILD_IN_CHILD, str(root), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _build(folder: Path) -> None:
    (folder / "one.bin").write_bytes(b"1" * 1000)
    (folder / "two.bin").write_bytes(b"2" * 1000)


def test_built_once_then_found(tmp_path: Path, progress: Any) -> None:
    store = ModelStore(tmp_path / "cache")
    assert store.find("m", "1", True, progress) is None
    folder = store.find_or_build("m", "1", _build, progress)
    assert sorted(path.name for path in folder.iterdir()) == [MANIFEST_NAME, "one.bin", "two.bin"]
    assert folder.stat().st_mode & 0o777 == 0o755

    def never(folder: Path) -> None:
        raise AssertionError("built a second time")

    assert store.find_or_build("m", "1", never, progress, verify=True) == folder
    assert progress.stages[-1] == ("checking m", 2000)
    assert progress.done == 2000


def test_another_recipe_builds_anew(tmp_path: Path, progress: Any) -> None:
    store = ModelStore(tmp_path)
    store.find_or_build("m", "1", _build, progress)

    def build_other(folder: Path) -> None:
        (folder / "new").touch()

    folder = store.find_or_build("m", "2", build_other, progress)
    assert sorted(path.name for path in folder.iterdir()) == [MANIFEST_NAME, "new"]
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_killed_build_leaves_nothing_that_counts(tmp_path: Path, progress: Any) -> None:
    with _child(tmp_path, "die") as child:
        assert child.wait() == 9
    assert any(".partial-" in path.name for path in tmp_path.iterdir())
    store = ModelStore(tmp_path)
    assert store.find("m", "1", False, progress) is None
    folder = store.find_or_build("m", "1", _build, progress, verify=True)
    assert (folder / "two.bin").stat().st_size == 1000
    assert not any(".partial-" in path.name for path in tmp_path.iterdir())


def test_failed_build_keeps_what_was_there(tmp_path: Path, progress: Any) -> None:
    store = ModelStore(tmp_path)
    folder = store.find_or_build("m", "1", _build, progress)

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        store.find_or_build("m", "2", fail, progress)
    assert store.find("m", "1", True, progress) == folder
    assert not any(".partial-" in path.name for path in tmp_path.iterdir())


def test_two_processes_build_once(tmp_path: Path) -> None:
    with _child(tmp_path, "wait") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "building\n"
        with _child(tmp_path, "go") as second:
            assert second.stdout is not None
            waits = second.stdout.readline()
            answer, _ = first.communicate("\n")
            assert answer.splitlines()[-1] == str(tmp_path / "m")
            assert second.communicate()[0].splitlines() == [str(tmp_path / "m")]
    assert waits == "waiting for another process that prepares m\n"
    assert (tmp_path / "builds").read_text() == "x"


@pytest.mark.parametrize("damage", ["shorter", "missing", "manifest", "no manifest"])
def test_damage_is_seen_without_hashes(tmp_path: Path, progress: Any, damage: str) -> None:
    store = ModelStore(tmp_path)
    folder = store.find_or_build("m", "1", _build, progress)
    match damage:
        case "shorter":
            (folder / "two.bin").write_bytes(b"2" * 999)
        case "missing":
            (folder / "two.bin").unlink()
        case "manifest":
            (folder / MANIFEST_NAME).write_text(json.dumps({"recipe": "1", "files": ["two.bin"]}))
        case _:
            (folder / MANIFEST_NAME).unlink()
    assert store.find("m", "1", False, progress) is None
    store.find_or_build("m", "1", _build, progress)
    assert store.find("m", "1", True, progress) == folder


def test_tampering_is_seen_with_hashes(tmp_path: Path, progress: Any) -> None:
    store = ModelStore(tmp_path)
    folder = store.find_or_build("m", "1", _build, progress)
    (folder / "two.bin").write_bytes(b"3" * 1000)
    assert store.find("m", "1", False, progress) == folder
    assert store.find("m", "1", True, progress) is None
