"""Converts a Llama-architecture GGUF file, of any quantisation, to a Hugging Face directory.

Weights become fp32 safetensors, one tensor at a time, so that memory stays near the largest
tensor. Needs numpy, gguf and tokenizers only: no torch. Units: bytes.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from blockyard.workers.gguf_tokenizer import GgufVocabulary, end_token_ids, write_tokenizer
from blockyard.workers.progress import ProgressReporter

__all__ = ["UnsupportedGguf", "convert_gguf"]

Array = npt.NDArray[np.float32]

_WHOLE_MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class UnsupportedGguf(Exception):
    """The GGUF file holds a model that this converter does not know."""


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a GGUF tensor goes: its new name, shape, and how many rotary heads are interleaved."""

    tensor: Any
    name: str
    shape: tuple[int, ...]
    interleaved_heads: int | None

    @property
    def num_bytes(self) -> int:
        return 4 * math.prod(self.shape)

    def values(self) -> Array:
        values: Array = gguf.dequantize(self.tensor.data, self.tensor.tensor_type)
        values = values.astype(np.float32, copy=False).reshape(self.shape)
        if self.interleaved_heads is None:
            return values
        return _halves_from_pairs(values, self.interleaved_heads)


def convert_gguf(source: Path, folder: Path, progress: ProgressReporter) -> None:
    """Write config, generation config, tokenizer and weights of `source` into `folder`.

    Raises:
        UnsupportedGguf: not a Llama-architecture model, or one with parts unknown here.
        UnsupportedTokenizer: the tokenizer cannot be rebuilt faithfully.
    """
    reader = gguf.GGUFReader(source)
    metadata = {
        key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")
    }
    vocabulary = _vocabulary(metadata)
    config = _config(metadata, vocabulary, {tensor.name for tensor in reader.tensors})
    write_tokenizer(vocabulary, config["max_position_embeddings"], folder)
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]},
    )
    targets = [
        _target(tensor, config["num_attention_heads"], config["num_key_value_heads"])
        for tensor in reader.tensors
    ]
    _write_safetensors(targets, folder / "model.safetensors", progress)


def _config(
    metadata: dict[str, Any], vocabulary: GgufVocabulary, tensor_names: set[str]
) -> dict[str, Any]:
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UnsupportedGguf(
            f"the GGUF file holds architecture {architecture!r}; only 'llama' can be converted; "
            "use the model's original Hugging Face directory instead"
        )
    if metadata.get("llama.expert_count"):
        raise UnsupportedGguf("the GGUF file holds a mixture of experts; only dense models convert")
    if metadata.get("llama.rope.scaling.type", "none") != "none" or any(
        name.startswith("rope_") for name in tensor_names
    ):
        raise UnsupportedGguf(
            "the GGUF file scales its rotary positions, which this converter does not carry over; "
            "use the model's original Hugging Face directory instead"
        )
    heads = int(metadata["llama.attention.head_count"])
    hidden = int(metadata["llama.embedding_length"])
    head_dim = int(metadata.get("llama.attention.key_length", hidden // heads))
    rotary = int(metadata.get("llama.rope.dimension_count", head_dim))
    if rotary != head_dim:
        raise UnsupportedGguf(
            f"the GGUF file rotates {rotary} of {head_dim} head dimensions; only all can be done"
        )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(vocabulary.tokens),
        "hidden_size": hidden,
        "intermediate_size": int(metadata["llama.feed_forward_length"]),
        "num_hidden_layers": int(metadata["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(metadata.get("llama.attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": int(metadata["llama.context_length"]),
        "rms_norm_eps": _shortest(metadata["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _shortest(metadata.get("llama.rope.freq_base", 10000.0)),
        "attention_bias": "blk.0.attn_q.bias" in tensor_names,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensor_names,
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "bos_token_id": vocabulary.bos,
        "eos_token_id": list(end_token_ids(vocabulary)),
        "pad_token_id": vocabulary.padding,
        "dtype": "float32",
    }


def _vocabulary(metadata: dict[str, Any]) -> GgufVocabulary:
    prefix = "tokenizer.ggml."
    try:
        tokens = metadata[prefix + "tokens"]
        return GgufVocabulary(
            model=metadata[prefix + "model"],
            split=metadata.get(prefix + "pre", "default"),
            tokens=tokens,
            types=metadata.get(prefix + "token_type", [1] * len(tokens)),
            merges=metadata.get(prefix + "merges", []),
            bos=metadata.get(prefix + "bos_token_id"),
            eos=metadata.get(prefix + "eos_token_id"),
            end_of_turn=metadata.get(prefix + "eot_token_id"),
            unknown=metadata.get(prefix + "unknown_token_id"),
            padding=metadata.get(prefix + "padding_token_id"),
            begins_with_bos=metadata.get(prefix + "add_bos_token"),
            chat_template=metadata.get("tokenizer.chat_template"),
        )
    except KeyError as error:
        raise UnsupportedGguf(f"the GGUF file has no {error.args[0]}") from None


def _target(tensor: Any, heads: int, kv_heads: int) -> _Target:
    # GGUF lists dimensions fastest first, numpy slowest first.
    shape = tuple(int(size) for size in reversed(tensor.shape))
    name = _WHOLE_MODEL_NAMES.get(tensor.name)
    if name is not None:
        return _Target(tensor, name, shape, None)
    match tensor.name.split("."):
        case ["blk", layer, part, kind] if part in _LAYER_NAMES and kind in ("weight", "bias"):
            interleaved = {"attn_q": heads, "attn_k": kv_heads}.get(part)
            name = f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
            return _Target(tensor, name, shape, interleaved)
    raise UnsupportedGguf(f"the GGUF file has a tensor {tensor.name!r} that Llama does not have")


def _halves_from_pairs(values: Array, heads: int) -> Array:
    """Undo GGUF's order of rotary rows.

    GGUF keeps the two rows of a rotation next to each other (0, 1), (2, 3), ...; Hugging Face
    keeps them half a head apart.
    """
    rows = values.shape[0]
    pairs = values.reshape(heads, rows // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _write_safetensors(targets: list[_Target], path: Path, progress: ProgressReporter) -> None:
    """Write tensors in the safetensors format: header length, JSON header, raw values."""
    total = sum(target.num_bytes for target in targets)
    progress.stage("converting weights", total)
    header = json.dumps(dict(_header(targets)), separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for target in targets:
            file.write(target.values().astype("<f4", copy=False).data)
            progress.advance(target.num_bytes)


def _header(targets: list[_Target]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "__metadata__", {"format": "pt"}
    start = 0
    for target in targets:
        end = start + target.num_bytes
        shape = list(target.shape)
        yield target.name, {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
        start = end


def _shortest(value: float) -> float:
    """The shortest decimal that is this value in fp32, the precision GGUF stores it in."""
    return float(str(np.float32(value)))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    present = {key: entry for key, entry in value.items() if entry is not None}
    path.write_text(json.dumps(present, indent=2) + "\n", encoding="utf-8")
