import json
import struct
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from blockyard.cluster.cli import app


def run(arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments.split()])


def answer(arguments: str) -> Any:
    result = run(f"{arguments} --json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def write_model(folder: Path, **config: object) -> Path:
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [10, 20], "data_offsets": [0, 800]},
            "b": {"dtype": "F32", "shape": [5], "data_offsets": [800, 820]},
        }
    ).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(820))
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


CONFIG: dict[str, object] = {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 512,
}


def test_a_directory_tells_shape_parameters_and_context(tmp_path: Path) -> None:
    found = answer(f"--model {write_model(tmp_path, **CONFIG)} --weights fp32 --kv-memory 1MB")
    assert found["kv_bytes_per_token"] == 2 * 4 * 2 * 8 * 2
    assert found["weight_bytes"] == 205 * 4
    assert found["max_seq_len"] == 512


def test_layers_that_keep_kv_otherwise_are_told(tmp_path: Path) -> None:
    kinds = ["linear_attention", "full_attention", "sliding_attention", "full_attention"]
    folder = write_model(tmp_path, **CONFIG, layer_types=kinds)
    found = answer(f"--model {folder} --kv-memory 1MB")
    assert found["kv_bytes_per_token"] == 2 * 3 * 2 * 8 * 2
    said = " ".join(found["assumptions"])
    assert "1 layers keep a state of fixed size" in said
    assert "1 layers see a window only" in said
    write_model(tmp_path, **CONFIG, kv_lora_rank=512)
    assert "kv_lora_rank" in run(f"--model {folder} --kv-memory 1MB").stderr


def test_broken_model_files_are_told(tmp_path: Path) -> None:
    folder = write_model(tmp_path, num_hidden_layers=4)
    assert "does not tell" in run(f"--model {folder}").stderr
    (folder / "model.safetensors").write_bytes(b"x")
    assert "no safetensors file" in run(f"--model {folder}").stderr
    (folder / "config.json").write_text("{", encoding="utf-8")
    assert "cannot read" in run(f"--model {folder}").stderr
