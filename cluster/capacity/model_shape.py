"""A model's shape from its own files: a directory, the cache, or the hub's two small ones.

Reads `config.json` and the headers of safetensors files; never downloads weights. Units: tokens,
parameters.
"""

import json
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.scheduler.capacity.kv_math import KNOWN_SHAPES, ModelShape
from blockyard.workers.catalog import default_cache_dir

__all__ = ["FoundShape", "ShapeUnknown", "find_shape", "read_shape"]

_HUB_SECONDS = 5.0
_WITHOUT_KV = ("linear_attention", "mamba", "conv", "recurrent")


class ShapeUnknown(ValueError):
    """A model's shape cannot be told; the message says why and what to give instead."""


@dataclass(frozen=True, slots=True)
class FoundShape:
    """A shape, the longest context (None if not known), and what a reader should know of it."""

    shape: ModelShape
    context_tokens: int | None
    notes: tuple[str, ...] = ()


def find_shape(name: str) -> FoundShape:
    """The shape of a model by directory, by a name we know, in the cache, or on the hub.

    Raises:
        ShapeUnknown: nobody has it, or it keeps its KV in another way than we count.
    """
    directory = Path(name).expanduser()
    if name and directory.is_dir():
        return read_shape(directory)
    for cached in (name, name.replace("/", "--")):
        if (default_cache_dir() / cached / "config.json").is_file() and cached not in ("", "."):
            return read_shape(default_cache_dir() / cached)
    if name.lower() in KNOWN_SHAPES:
        return FoundShape(KNOWN_SHAPES[name.lower()], None)
    if name.count("/") == 1 and not name.startswith(("/", ".")):
        return _from_hub(name)
    raise ShapeUnknown(
        f"no model {name!r}: give a directory with config.json, a hub repository as org/name, "
        f"one of {', '.join(KNOWN_SHAPES)}, or --shape layers,kv_heads,head_dim,params"
    )


def read_shape(directory: Path) -> FoundShape:
    """The shape that `config.json` tells, with parameters counted in the safetensors headers."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ShapeUnknown(f"cannot read {path}: {error}; or give --shape") from None
    parameters = sum(_count_parameters(file) for file in sorted(directory.glob("*.safetensors")))
    return _from_config(config, str(path), parameters)


def _from_config(config: Any, source: str, parameters: int) -> FoundShape:
    text = config.get("text_config", config) if isinstance(config, dict) else {}
    if "kv_lora_rank" in text:
        raise ShapeUnknown(
            f"{source}: the model compresses keys and values together (kv_lora_rank), so they are "
            "not counted by heads; give --shape with what one token takes"
        )
    heads = _whole(text, "num_attention_heads")
    layers = _whole(text, "num_hidden_layers")
    kv_heads = _whole(text, "num_key_value_heads") or heads
    hidden = _whole(text, "hidden_size")
    head_dim = _whole(text, "head_dim") or (hidden // heads if hidden and heads else None)
    if not layers or not kv_heads or not head_dim:
        raise ShapeUnknown(
            f"{source} does not tell num_hidden_layers, num_key_value_heads and head_dim; give "
            "--shape layers,kv_heads,head_dim,params"
        )
    notes: list[str] = []
    kinds = [str(kind) for kind in text.get("layer_types") or ()]
    without = sum(any(word in kind for word in _WITHOUT_KV) for kind in kinds)
    windowed = sum("sliding" in kind for kind in kinds)
    if without:
        layers -= without
        notes.append(f"{without} layers keep a state of fixed size instead of KV: not counted")
    if windowed:
        notes.append(f"{windowed} layers see a window only, but are counted for all tokens")
    if not parameters:
        notes.append("no weights were found, so they are counted as 0 B: give --shape")
    if not layers:
        raise ShapeUnknown(f"{source}: no layer keeps KV, so there is nothing to plan")
    shape = ModelShape(layers, kv_heads, head_dim, parameters)
    return FoundShape(shape, _whole(text, "max_position_embeddings"), tuple(notes))


def _whole(config: dict[str, Any], field: str) -> int | None:
    value = config.get(field)
    return value if isinstance(value, int) and value > 0 else None


def _count_parameters(path: Path) -> int:
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > path.stat().st_size:
                raise ValueError("the header is longer than the file")
            header = json.loads(file.read(size))
        total = 0
        for name, tensor in header.items():
            count = 1
            for extent in tensor["shape"] if name != "__metadata__" else [0]:
                count *= extent
            total += count
        return total
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise ShapeUnknown(f"{path} is no safetensors file: {error}") from None


def _from_hub(repository: str) -> FoundShape:
    from huggingface_hub import HfApi, hf_hub_download

    try:
        with tempfile.TemporaryDirectory() as folder:
            info = HfApi(library_name="blockyard").model_info(repository, timeout=_HUB_SECONDS)
            file = hf_hub_download(
                repository, "config.json", local_dir=folder, etag_timeout=_HUB_SECONDS
            )
            config = json.loads(Path(file).read_text(encoding="utf-8"))
    except Exception as error:  # the client's own errors, the network's, and broken answers
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ShapeUnknown(
            f"{repository} is not in the cache, and the Hugging Face hub says: {reason}. Give a "
            "directory, or --shape layers,kv_heads,head_dim,params"
        ) from None
    parameters = info.safetensors.total if info.safetensors is not None else 0
    return _from_config(config, f"config.json of {repository}", parameters)
