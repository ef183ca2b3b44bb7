"""The Hugging Face hub as a source of models, with the hub replaced."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from blockyard.workers import model_sources
from blockyard.workers.catalog import ModelUnavailable, resolve_model
from blockyard.workers.model_sources import SourceUnavailable, fetch_from_hub


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def _fake_hub(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    known = (("org/name", None), ("org/name", "v1.0"))

    class Api:
        def __init__(self, **kwargs: object) -> None:
            pass

        def model_info(self, repository: str, **kwargs: object) -> SimpleNamespace:
            if (repository, kwargs["revision"]) not in known:
                raise OSError(f"no {repository} at {kwargs['revision']}")
            siblings = [
                SimpleNamespace(rfilename=name, size=len(content))
                for name, content in files.items()
            ]
            return SimpleNamespace(siblings=siblings, sha="abc")

    def download(
        repository: str, name: str, *, revision: str, local_dir: str, tqdm_class: Any
    ) -> None:
        if files[name] == b"broken":
            raise OSError("connection reset\nlong trace")
        bar = tqdm_class(total=len(files[name]), unit="B")
        (Path(local_dir) / name).write_bytes(files[name])
        bar.update(len(files[name]))
        bar.close()

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)


def test_hub_files_without_pickles_and_code(
    tmp_path: Path,
    progress: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    wanted = {"config.json": b"{}", "model.safetensors": b"w" * 90, "chat_template.jinja": b"x"}
    unwanted = {
        "pytorch_model.bin": b"p",
        "modeling.py": b"p",
        "onnx/config.json": b"p",
        "README.md": b"p",
    }
    _fake_hub(monkeypatch, wanted | unwanted)
    fetch_from_hub("org/name", tmp_path, progress)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == wanted
    assert progress.stages[-1] == ("downloading org/name", 93)
    assert progress.done == 93
    assert capfd.readouterr().err == ""


def test_a_revision_is_asked_for_and_kept_apart(
    tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_hub(monkeypatch, {"config.json": b"{}", "model.safetensors": b"w"})
    assert resolve_model("org/name", tmp_path, progress) == tmp_path / "org--name"
    assert resolve_model("org/name@v1.0", tmp_path, progress) == tmp_path / "org--name@v1.0"
    with pytest.raises(ModelUnavailable, match="no org/name at v2"):
        resolve_model("org/name@v2", tmp_path, progress)


def test_hub_that_fails_half_way_leaves_nothing(
    tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_hub(monkeypatch, {"config.json": b"{}", "model.safetensors": b"broken"})
    with pytest.raises(SourceUnavailable, match=r"^model.safetensors: connection reset$"):
        fetch_from_hub("org/name", tmp_path, progress)
    assert list(tmp_path.iterdir()) == []


def test_hub_repository_with_pickles_only(
    tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_hub(monkeypatch, {"config.json": b"{}", "pytorch_model.bin": b"p"})
    with pytest.raises(ModelUnavailable, match="no safetensors weights"):
        resolve_model("org/name", tmp_path, progress)


def test_hub_that_never_answers(
    tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_hub(monkeypatch, {})
    never = threading.Event()
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *args, **kwargs: never.wait())
    monkeypatch.setattr(model_sources, "HUB_ANSWER_SECONDS", 0.01)
    try:
        with pytest.raises(SourceUnavailable, match="no answer"):
            fetch_from_hub("org/name", tmp_path, progress)
    finally:
        never.set()
