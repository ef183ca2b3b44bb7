"""Tensors read whole or in part, from one file or several."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from blockyard.workers.checkpoint import Checkpoint, Slice
from blockyard.workers.description import ModelFilesError
from blockyard.workers.partition import Span


@pytest.fixture
def tensor(tmp_path: Path) -> torch.Tensor:
    whole = torch.arange(60.0).view(10, 6)
    save_file(
        {"a": whole, "b": torch.ones(4, dtype=torch.bfloat16)}, tmp_path / "model.safetensors"
    )
    return whole


@pytest.mark.parametrize(
    ("part", "rows", "columns"),
    [
        (Slice(0, (Span(2, 5),), 3), [2, 3, 4], range(6)),
        (Slice(1, (Span(1, 3),), 2), range(10), [1, 2]),
        (Slice(0, (Span(1, 2), Span(6, 8)), 3), [1, 6, 7], range(6)),
    ],
)
def test_a_part_is_what_it_says(
    tmp_path: Path, tensor: torch.Tensor, progress: Any, part: Slice, rows: Any, columns: Any
) -> None:
    with Checkpoint(tmp_path, progress) as checkpoint:
        assert checkpoint.shape("a") == (10, 6)
        checkpoint.keep({"a": part}.get)
        read = checkpoint.tensors()["a"][...]
        whole = checkpoint.tensors()["b"][...]
    assert torch.equal(read, tensor[list(rows)][:, list(columns)])
    assert read.is_contiguous() and read.untyped_storage().nbytes() == read.nbytes
    assert torch.equal(whole, torch.ones(4, dtype=torch.bfloat16))
    assert progress.done == (tmp_path / "model.safetensors").stat().st_size


def test_short_and_empty_parts_are_filled_with_zeros(
    tmp_path: Path, tensor: torch.Tensor, progress: Any
) -> None:
    with Checkpoint(tmp_path, progress) as checkpoint:
        checkpoint.keep({"a": Slice(0, (Span(8, 10),), 4)}.get)
        read = checkpoint.tensors()["a"][...]
        assert torch.equal(read, torch.cat((tensor[8:], torch.zeros(2, 6))))
        checkpoint.keep({"a": Slice(0, (Span(10, 10),), 4)}.get)
        assert torch.equal(checkpoint.tensors()["a"][...], torch.zeros(4, 6))
        checkpoint.keep({"b": Slice(0, (), 0, blank=True)}.get)
        assert torch.equal(checkpoint.tensors()["b"][...], torch.zeros(4, dtype=torch.bfloat16))


def test_the_index_says_which_files_count(tmp_path: Path, progress: Any) -> None:
    for number in range(3):
        save_file(
            {f"t{number}": torch.full((2,), float(number))}, tmp_path / f"{number}.safetensors"
        )
    index = {"weight_map": {"t0": "0.safetensors", "t2": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with Checkpoint(tmp_path, progress) as checkpoint:
        assert sorted(checkpoint.tensors()) == ["t0", "t2"]
        assert checkpoint.tensors()["t2"][...].tolist() == [2.0, 2.0]
        with pytest.raises(IndexError, match="read by"):
            checkpoint.tensors()["t2"][0]
    (tmp_path / "2.safetensors").unlink()
    with pytest.raises(ModelFilesError, match="cannot be read"):
        Checkpoint(tmp_path, progress)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelFilesError, match="not an index of weights"):
        Checkpoint(tmp_path, progress)
