"""Every kind of block that GGUF files of Llama models use, against its formula worked out here.

Blocks are random bytes with sane scales, so every bit of them counts. Sources: the layouts of ggml
(`block_q4_0` to `block_q6_K`).
"""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from blockyard.workers.gguf_convert import convert_gguf

Kind = gguf.GGMLQuantizationType
HIDDEN = 256


def _half(raw: bytes) -> float:
    return float(struct.unpack("<e", raw)[0])


def _f16(raw: bytes) -> list[float]:
    return [_half(raw)]


def _low_high(raw: bytes) -> list[int]:
    return [byte & 15 for byte in raw] + [byte >> 4 for byte in raw]


def _fifth_bits(raw: bytes) -> list[int]:
    word = int.from_bytes(raw, "little")
    return [(word >> place & 1) << 4 for place in range(32)]


def _q4_0(raw: bytes) -> list[float]:
    return [_half(raw[:2]) * (number - 8) for number in _low_high(raw[2:])]


def _q4_1(raw: bytes) -> list[float]:
    return [_half(raw[:2]) * number + _half(raw[2:4]) for number in _low_high(raw[4:])]


def _q5_0(raw: bytes) -> list[float]:
    pairs = zip(_low_high(raw[6:]), _fifth_bits(raw[2:6]), strict=True)
    return [_half(raw[:2]) * ((low | high) - 16) for low, high in pairs]


def _q5_1(raw: bytes) -> list[float]:
    pairs = zip(_low_high(raw[8:]), _fifth_bits(raw[4:8]), strict=True)
    return [_half(raw[:2]) * (low | high) + _half(raw[2:4]) for low, high in pairs]


def _q8_0(raw: bytes) -> list[float]:
    return [_half(raw[:2]) * number for number in struct.unpack("<32b", raw[2:])]


def _scale_and_least(scales: bytes, index: int) -> tuple[int, int]:
    """The 6-bit scale and minimum of a part of 32 in Q4_K and Q5_K."""
    if index < 4:
        return scales[index] & 63, scales[index + 4] & 63
    low = scales[index + 4]
    return (
        (low & 15) | (scales[index - 4] >> 6) << 4,
        (low >> 4) | (scales[index] >> 6) << 4,
    )


def _k_parts(raw: bytes, numbers: Callable[[int, int], int]) -> list[float]:
    """Eight parts of 32: `numbers(part, place)` is the whole number there."""
    whole, least = _half(raw[:2]), _half(raw[2:4])
    values = []
    for part in range(8):
        scale, minimum = _scale_and_least(raw[4:16], part)
        values += [whole * scale * numbers(part, place) - least * minimum for place in range(32)]
    return values


def _four_bits(raw: bytes, part: int, place: int) -> int:
    return raw[part // 2 * 32 + place] >> 4 * (part % 2) & 15


def _q4_k(raw: bytes) -> list[float]:
    return _k_parts(raw, lambda part, place: _four_bits(raw[16:], part, place))


def _q5_k(raw: bytes) -> list[float]:
    return _k_parts(
        raw,
        lambda part, place: _four_bits(raw[48:], part, place) | (raw[16 + place] >> part & 1) << 4,
    )


def _q6_k(raw: bytes) -> list[float]:
    low, high, scales = raw[:128], raw[128:192], struct.unpack("<16b", raw[192:208])
    whole = _half(raw[208:])
    values = []
    for place in range(256):
        half, within = divmod(place, 128)
        quarter, column = divmod(within, 32)
        byte = low[64 * half + column + 32 * (quarter % 2)]
        number = (byte >> 4 if quarter > 1 else byte & 15) | (
            high[32 * half + column] >> 2 * quarter & 3
        ) << 4
        values.append(whole * scales[place // 16] * (number - 32))
    return values


KINDS: dict[Kind, tuple[Callable[[bytes], list[float]], tuple[int, ...]]] = {
    Kind.F16: (_f16, (0,)),
    Kind.Q4_0: (_q4_0, (0,)),
    Kind.Q4_1: (_q4_1, (0, 2)),
    Kind.Q5_0: (_q5_0, (0,)),
    Kind.Q5_1: (_q5_1, (0, 2)),
    Kind.Q8_0: (_q8_0, (0,)),
    Kind.Q4_K: (_q4_k, (0, 2)),
    Kind.Q5_K: (_q5_k, (0, 2)),
    Kind.Q6_K: (_q6_k, (208,)),
}
"""By kind: what a block of bytes means, and where in it half-precision numbers are."""


def _random_rows(kind: Kind, rows: int, columns: int) -> np.ndarray[Any, Any]:
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    draw = np.random.default_rng(int(kind))
    packed = draw.integers(0, 256, (rows, columns // numbers, size), dtype=np.uint8)
    for place in KINDS[kind][1]:
        halves = draw.uniform(0.001, 0.01, packed.shape[:2]).astype("<f2")
        packed[..., place : place + 2] = halves[..., None].view(np.uint8)
    return packed.reshape(rows, -1)


def _write(path: Path, kind: Kind) -> dict[str, np.ndarray[Any, Any]]:
    """A Llama of one layer whose matrices are all of one kind; the packed ones by name."""
    tokens = ["<s>", "</s>", *(f"t{number}" for number in range(30))]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * 30)
    writer.add_token_merges([])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    packed = {}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        packed[name] = _random_rows(kind, HIDDEN, HIDDEN)
        writer.add_tensor(f"blk.0.{name}.weight", packed[name], raw_dtype=kind)
    packed["token_embd"] = _random_rows(kind, len(tokens), HIDDEN)
    writer.add_tensor("token_embd.weight", packed["token_embd"], raw_dtype=kind)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return packed


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_blocks_mean_what_their_kind_says(kind: Kind, tmp_path: Path, progress: Any) -> None:
    packed = _write(tmp_path / "model.gguf", kind)
    folder = tmp_path / "out"
    folder.mkdir()
    convert_gguf(tmp_path / "model.gguf", folder, progress)
    found = load_file(folder / "model.safetensors")
    size = gguf.GGML_QUANT_SIZES[kind][1]
    for name, ours in (
        ("token_embd", "model.embed_tokens.weight"),
        ("attn_v", "model.layers.0.self_attn.v_proj.weight"),
        ("ffn_down", "model.layers.0.mlp.down_proj.weight"),
    ):
        rows = packed[name][:3]  # in Python, number by number
        expected = [
            [
                value
                for begin in range(0, len(row), size)
                for value in KINDS[kind][0](row[begin : begin + size].tobytes())
            ]
            for row in rows
        ]
        np.testing.assert_allclose(found[ours][:3], expected, rtol=1e-5, atol=1e-6)
        assert found[ours].dtype == np.float32
