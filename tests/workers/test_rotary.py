"""Scaled rotary positions: a packed, chunked run gives the scores of transformers at three lengths.

Where the scaling depends on how long the text is, it is that of the longest context served.
"""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Phi3Config

from blockyard.cuda.backend import AttentionBatch
from blockyard.cuda.reference import ReferenceBackend
from blockyard.workers.attention import CachedAttention
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.loader import register_attention
from blockyard.workers.model import DecoderModel

ORIGINAL = 64
LENGTHS = (40, 64, 150)
BLOCK_SIZE = 16
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": None,
}
FACTORS = {"short_factor": [1.0 + 0.1 * n for n in range(8)], "long_factor": [2.0] * 8}
KINDS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "longrope": {
        "rope_type": "longrope",
        "original_max_position_embeddings": ORIGINAL,
        **FACTORS,
    },
}


def _config(kind: str) -> Any:
    rope = {"rope_theta": 10000.0, **KINDS[kind]}
    longest = ORIGINAL if kind == "dynamic" else 4 * ORIGINAL
    if kind == "longrope":
        return Phi3Config(
            **SIZES,
            max_position_embeddings=longest,
            original_max_position_embeddings=ORIGINAL,
            rope_parameters=rope,
            eos_token_id=None,
        )
    return LlamaConfig(**SIZES, max_position_embeddings=longest, rope_parameters=rope)


def _model(config: Any, attention: str) -> Any:
    register_attention()
    torch.manual_seed(0)
    build: Any = AutoModelForCausalLM.from_config
    return build(config, attn_implementation=attention).eval()


def _last_logits(model: DecoderModel, tokens: torch.Tensor, chunk: int) -> torch.Tensor:
    """Scores after the last token, which a step computes with a short stranger beside it."""
    shape = model.attention
    geometry = KVGeometry(shape.layers, shape.kv_heads, shape.head_dim, BLOCK_SIZE, torch.float32)
    blocks = -(-len(tokens) // BLOCK_SIZE)
    cache = KVCache(geometry, blocks + 1, torch.device("cpu"))
    logits = torch.empty(0)
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        end = start + len(part)
        tables = torch.zeros(2, blocks, dtype=torch.int32)
        tables[0] = torch.arange(blocks)
        tables[1, 0] = blocks
        batch = AttentionBatch(
            counts=np.array([len(part), 1], dtype=np.int32),
            lengths=np.array([end, 1], dtype=np.int32),
            block_tables=tables,
            slots=torch.cat((torch.arange(start, end), torch.tensor([blocks * BLOCK_SIZE]))),
            block_size=BLOCK_SIZE,
        )
        with torch.inference_mode():
            logits = model.forward(
                torch.cat((part, part[:1])),
                torch.cat((torch.arange(start, end), torch.tensor([0]))),
                torch.tensor([len(part) - 1]),
                CachedAttention(cache, ReferenceBackend().begin(batch)),
            )
    return logits[0]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_scores_equal_transformers(kind: str, length: int) -> None:
    tokens = (torch.arange(length) * 37 + 5) % 300
    with torch.inference_mode():
        expected = _model(_config(kind), "eager")(input_ids=tokens[None], use_cache=False).logits
    decoder = DecoderModel(_model(_config(kind), "blockyard"), context_tokens=length)
    ours = _last_logits(decoder, tokens, chunk=17)
    torch.testing.assert_close(ours, expected[0, -1], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_short_text_does_not_depend_on_its_neighbours(kind: str) -> None:
    decoder = DecoderModel(_model(_config(kind), "blockyard"), context_tokens=150)
    rotary: Any = next(m for m in decoder.module.modules() if hasattr(m, "rope_type"))
    sample = torch.zeros(1)
    alone, _ = rotary(sample, torch.arange(4)[None])
    beside, _ = rotary(sample, torch.arange(150)[None])
    assert torch.equal(alone[0], beside[0, :4])


def test_layers_of_two_kinds_are_settled_each() -> None:
    ropes = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    }
    config = Gemma3TextConfig(
        **SIZES,
        head_dim=16,
        max_position_embeddings=ORIGINAL,
        sliding_window=24,
        layer_types=list(ropes),
        rope_parameters=ropes,
    )
    decoder = DecoderModel(_model(config, "blockyard"), context_tokens=150)
    rotary: Any = next(m for m in decoder.module.modules() if hasattr(m, "rope_type"))
    alone, _ = rotary(torch.zeros(1), torch.arange(4)[None], "full_attention")
    beside, _ = rotary(torch.zeros(1), torch.arange(150)[None], "full_attention")
    assert torch.equal(alone[0], beside[0, :4])
