"""What each rank keeps of a model: together all of it, each part once; and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config

from blockyard.workers.collectives import Communicator
from blockyard.workers.contract import UnsupportedModel
from blockyard.workers.loader import load_model

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 1,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 64,
    "pad_token_id": None,
}


def _parts(config: Any, folder: Path, progress: Any, ranks: int) -> tuple[Any, list[Any]]:
    from transformers import AutoModelForCausalLM

    build: Any = AutoModelForCausalLM.from_config
    whole = build(config)
    whole.save_pretrained(folder)
    parts = [
        load_model(folder, CPU, "float32", 64, progress, Communicator(rank, ranks)).module
        for rank in range(ranks)
    ]
    return whole.state_dict(), [dict(part.state_dict()) for part in parts]


@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_are_all_of_the_model(tmp_path: Path, progress: Any, ranks: int) -> None:
    config = LlamaConfig(**SIZES, tie_word_embeddings=False)
    whole, parts = _parts(config, tmp_path, progress, ranks)
    layer = "model.layers.0"
    for name, dim in (
        (f"{layer}.self_attn.q_proj.weight", 0),
        (f"{layer}.self_attn.k_proj.weight", 0),
        (f"{layer}.self_attn.o_proj.weight", 1),
        (f"{layer}.mlp.up_proj.weight", 0),
        (f"{layer}.mlp.down_proj.weight", 1),
        ("lm_head.weight", 0),
        ("model.embed_tokens.weight", 0),
    ):
        joined = torch.cat([part[name] for part in parts], dim=dim)
        size = whole[name].shape[dim]
        assert torch.equal(joined.narrow(dim, 0, size), whole[name]), name
        assert not joined.narrow(dim, size, joined.shape[dim] - size).any(), name
        assert joined.shape[dim] - size < ranks
    for part in parts:
        assert torch.equal(
            part[f"{layer}.input_layernorm.weight"], whole[f"{layer}.input_layernorm.weight"]
        )


def test_runs_of_a_fused_projection_are_cut_each(tmp_path: Path, progress: Any) -> None:
    whole, parts = _parts(Phi3Config(**SIZES), tmp_path, progress, 2)
    name = "model.layers.0.self_attn.qkv_proj.weight"
    query, key, value = whole[name].split([36, 12, 12])
    assert torch.equal(parts[0][name], torch.cat((query[:24], key[:8], value[:8])))
    assert torch.equal(parts[1][name], torch.cat((query[24:], key[8:], value[8:])))


def test_one_kv_head_is_held_by_all_who_share_it(tmp_path: Path, progress: Any) -> None:
    config = LlamaConfig(**{**SIZES, "num_key_value_heads": 1})
    whole, parts = _parts(config, tmp_path, progress, 2)
    for part in parts:
        name = "model.layers.0.self_attn.k_proj.weight"
        assert torch.equal(part[name], whole[name])


def test_more_ranks_than_heads_are_refused(tmp_path: Path, progress: Any) -> None:
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="9 query heads cannot be divided over 10 ranks"):
        load_model(tmp_path, CPU, "float32", 64, progress, Communicator(0, 10))
