"""Keeps prepared model directories in a cache: each is whole, or not there.

A directory is built under a temporary name beside its final one, listed in a manifest (size and
SHA-256 of every file), flushed to disk and renamed. A lock lets one process build while others
wait. Does not know where the files come from. Units: bytes.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from blockyard.workers.progress import ProgressReporter

__all__ = ["MANIFEST_NAME", "ModelStore", "file_sha256"]

MANIFEST_NAME = "manifest.json"
_CHUNK_BYTES = 1 << 20


class ModelStore:
    """Prepared model directories under one cache directory.

    Args:
        root: the cache directory; made when first needed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, name: str, recipe: str, verify: bool, progress: ProgressReporter) -> Path | None:
        """The directory `name`, if it is whole and was made by `recipe`; else None.

        Sizes are always compared; `verify` compares hashes as well, which reads every byte.
        """
        folder = self.root / name
        manifest = _read_manifest(folder, recipe)
        if manifest is None:
            return None
        for file_name, (size, _) in manifest.items():
            path = folder / file_name
            if not path.is_file() or path.stat().st_size != size:
                return None
        if verify:
            progress.stage(f"checking {name}", sum(size for size, _ in manifest.values()))
            for file_name, (_, sha256) in manifest.items():
                if file_sha256(folder / file_name, progress) != sha256:
                    return None
        return folder

    def find_or_build(
        self,
        name: str,
        recipe: str,
        build: Callable[[Path], None],
        progress: ProgressReporter,
        verify: bool = False,
    ) -> Path:
        """The directory `name`, made by `build` if it is missing, damaged or of another recipe.

        `build` gets an empty directory to fill. If it raises, nothing of it stays and a directory
        that was there before is left alone.
        """
        found = self.find(name, recipe, verify, progress)
        if found is not None:
            return found
        self.root.mkdir(parents=True, exist_ok=True)
        with self._lock(name, progress):
            # Somebody else may have finished it while this process waited for the lock.
            found = self.find(name, recipe, verify, progress)
            if found is not None:
                return found
            self._remove_leftovers(name)
            partial = Path(tempfile.mkdtemp(prefix=_partial_prefix(name), dir=self.root))
            try:
                build(partial)
                _write_manifest(partial, recipe, progress)
                self._publish(partial, name)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
        return self.root / name

    def _publish(self, partial: Path, name: str) -> None:
        # mkdtemp makes private directories; a shared cache is read by other users too.
        partial.chmod(0o755)
        final = self.root / name
        if final.exists():
            aside = Path(tempfile.mkdtemp(prefix=_partial_prefix(name), dir=self.root))
            final.rename(aside / "damaged")
            partial.rename(final)
            shutil.rmtree(aside, ignore_errors=True)
        else:
            partial.rename(final)
        _sync_directory(self.root)

    def _remove_leftovers(self, name: str) -> None:
        for leftover in self.root.glob(_partial_prefix(name) + "*"):
            shutil.rmtree(leftover, ignore_errors=True)

    @contextmanager
    def _lock(self, name: str, progress: ProgressReporter) -> Iterator[None]:
        with open(self.root / f".{name}.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress.stage(f"waiting for another process that prepares {name}", None)
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield  # closing the file gives the lock back, and so does a killed process


def file_sha256(path: Path, progress: ProgressReporter) -> str:
    """SHA-256 of a file in hexadecimal; every chunk read advances `progress`."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            progress.advance(len(chunk))
    return digest.hexdigest()


def _partial_prefix(name: str) -> str:
    return f".{name}.partial-"


def _write_manifest(folder: Path, recipe: str, progress: ProgressReporter) -> None:
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    progress.stage("checking the new files", sum(path.stat().st_size for path in paths))
    files: dict[str, dict[str, int | str]] = {}
    for path in paths:
        files[path.name] = {"size": path.stat().st_size, "sha256": file_sha256(path, progress)}
        _sync_file(path)
    manifest = folder / MANIFEST_NAME
    manifest.write_text(json.dumps({"recipe": recipe, "files": files}, indent=2) + "\n")
    _sync_file(manifest)
    _sync_directory(folder)


def _read_manifest(folder: Path, recipe: str) -> dict[str, tuple[int, str]] | None:
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        if manifest["recipe"] != recipe:
            return None
        return {
            str(name): (int(entry["size"]), str(entry["sha256"]))
            for name, entry in manifest["files"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _sync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
