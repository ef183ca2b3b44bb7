"""What transformers hands to attention, and which models are refused at load."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DeepseekV3Config,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen3Config,
    Qwen3NextConfig,
    T5Config,
)

from blockyard.workers.contract import ContractProbe, UnsupportedModel, refuse_config
from blockyard.workers.description import ModelFilesError
from blockyard.workers.loader import load_model, register_attention
from blockyard.workers.model import DecoderModel

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}


class Witness(ContractProbe):
    """Notes every call before the checks of the probe."""

    def __init__(self) -> None:
        super().__init__(layers=2, context_tokens=128)
        self.calls: list[tuple[int, torch.Size, torch.Size, torch.Tensor | None]] = []

    def layer(
        self,
        module: torch.nn.Module,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
        extras: dict[str, Any],
    ) -> torch.Tensor:
        assert isinstance(module.layer_idx, int)
        self.calls.append((module.layer_idx, queries.shape, keys.shape, mask))
        return super().layer(module, queries, keys, values, mask, scale, extras)


def _model(config: PretrainedConfig) -> DecoderModel:
    register_attention()
    torch.manual_seed(0)
    build: Any = AutoModelForCausalLM.from_config
    model = build(config, attn_implementation="blockyard")
    return DecoderModel(model.eval(), context_tokens=128)


@pytest.mark.parametrize("config", [LlamaConfig(**SIZES), Qwen3Config(**SIZES)])
def test_each_layer_calls_once_and_brings_no_mask(config: PretrainedConfig) -> None:
    model = _model(config)
    assert (model.attention.heads, model.attention.kv_heads, model.attention.head_dim) == (4, 2, 8)
    witness = Witness()
    with torch.inference_mode():
        logits = model.forward(
            input_ids=torch.tensor([5, 6, 7, 5, 6]),
            positions=torch.tensor([0, 1, 2, 0, 1]),
            wanted=torch.tensor([2, 4]),
            layer_attention=witness,
        )
    assert logits.shape == (2, 64)
    assert witness.calls == [
        (0, torch.Size([5, 4, 8]), torch.Size([5, 2, 8]), None),
        (1, torch.Size([5, 4, 8]), torch.Size([5, 2, 8]), None),
    ]


def test_windows_caps_and_sinks_are_seen_layer_by_layer() -> None:
    forms = _model(MistralConfig(**SIZES, sliding_window=64)).attention.forms
    assert [form.window for form in forms] == [64, 64]
    kinds = ["sliding_attention", "full_attention"]
    gemma = Gemma2Config(**SIZES, sliding_window=64, attn_logit_softcapping=30.0, layer_types=kinds)
    forms = _model(gemma).attention.forms
    assert [(form.window, form.soft_cap) for form in forms] == [(64, 30.0), (None, 30.0)]
    experts: dict[str, Any] = {"num_local_experts": 2, "num_experts_per_tok": 1}
    oss = GptOssConfig(**SIZES, sliding_window=64, layer_types=kinds, **experts)
    for form in _model(oss).attention.forms:
        assert form.sinks is not None and form.sinks.shape == (4,)


def test_a_window_that_attention_is_not_told_of_is_refused() -> None:
    probe = ContractProbe(layers=1, context_tokens=128, windows=(64,))
    with pytest.raises(UnsupportedModel, match="window of 64 tokens by its configuration"):
        _call(probe, 0, extras={"sliding_window": None})
    _call(ContractProbe(layers=1, context_tokens=64, windows=(64,)), 0)
    with pytest.raises(UnsupportedModel, match="chunks of 64 tokens, shorter than"):
        refuse_config({}, {"layer_types": ["chunked_attention"], "attention_chunk_size": 64}, 128)


def test_layers_that_go_their_own_way_are_refused() -> None:
    config = BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    with pytest.raises((UnsupportedModel, ValueError)):
        _model(config)
    probe = ContractProbe(layers=2, context_tokens=128)
    with pytest.raises(UnsupportedModel, match=r"layers \[0, 1\] of 2 do not go through"):
        probe.finish()


def _call(probe: ContractProbe, index: int, heads: int = 4, **change: Any) -> None:
    module = torch.nn.Module()
    module.layer_idx = index  # type: ignore[assignment]
    given: dict[str, Any] = {
        "queries": torch.zeros(2, heads, 8),
        "keys": torch.zeros(2, 2, 8),
        "values": torch.zeros(2, 2, 8),
        "mask": None,
        "scale": 1.0,
        "extras": {},
    }
    probe.layer(module, **{**given, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": torch.zeros(1)}, "mask of its own"),
        ({"values": torch.zeros(2, 2, 4)}, "keys and values must be alike"),
        ({"keys": torch.zeros(2, 3, 8), "values": torch.zeros(2, 3, 8)}, "must be alike"),
        ({"extras": {"is_causal": False}}, "passes 'is_causal'"),
        ({"extras": {"dropout": 0.1}}, "passes 'dropout'"),
        ({"extras": {"position_bias": torch.zeros(1)}}, "passes 'position_bias'"),
    ],
)
def test_calls_that_ask_for_more(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        _call(ContractProbe(layers=2, context_tokens=128), 0, **change)


def test_layers_must_be_alike_and_call_once() -> None:
    probe = ContractProbe(layers=2, context_tokens=128)
    _call(probe, 0, extras={"dropout": 0.0, "position_ids": torch.zeros(1), "is_causal": None})
    with pytest.raises(UnsupportedModel, match="all must be alike"):
        _call(probe, 1, heads=8)
    probe = ContractProbe(layers=2, context_tokens=128)
    for index in (0, 1, 1):
        _call(probe, index)
    with pytest.raises(UnsupportedModel, match=r"layers \[1\] of 2"):
        probe.finish()


def test_encoder_decoders_quantised_and_own_code_are_refused(tmp_path: Path, progress: Any) -> None:
    (tmp_path / "model.safetensors").touch()

    def load() -> None:
        load_model(tmp_path, CPU, "auto", 128, progress)

    T5Config().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="t5 is an encoder-decoder"):
        load()
    for other, reason in (
        (DeepseekV3Config(), "compressed .multi-head latent attention"),
        (MambaConfig(), "state-space layers"),
        (Qwen3NextConfig(), "linear attention"),
    ):
        other.save_pretrained(tmp_path)
        with pytest.raises(UnsupportedModel, match=reason):
            load()
    config = LlamaConfig(**SIZES)
    config.quantization_config = {"quant_method": "bitsandbytes"}
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="quantised"):
        load()
    (tmp_path / "config.json").write_text(
        '{"model_type": "homemade", "auto_map": {"AutoConfig": "code.HomeConfig"}}'
    )
    with pytest.raises(UnsupportedModel, match="never run"):
        load()


def test_pickled_weights_are_never_opened(tiny_dir: Path, tmp_path: Path, progress: Any) -> None:
    shutil.copy(tiny_dir / "config.json", tmp_path)
    with pytest.raises(ModelFilesError, match=r"holds no \*.safetensors"):
        load_model(tmp_path, CPU, "auto", 128, progress)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    with pytest.raises(ModelFilesError, match=r"pytorch_model.bin, which can run code"):
        load_model(tmp_path, CPU, "auto", 128, progress)


def test_load_reports_progress_and_dtype(
    tiny_dir: Path, progress: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    model = load_model(tiny_dir, CPU, "bfloat16", 512, progress)
    assert model.dtype is torch.bfloat16
    size = (tiny_dir / "model.safetensors").stat().st_size
    assert progress.stages == [(f"loading {tiny_dir.name}", size)]
    assert progress.done == size
    assert "Loading weights" not in capfd.readouterr().err
    with pytest.raises(ValueError, match="dtype is 'int3'"):
        load_model(tiny_dir, CPU, "int3", 512, progress)


def test_incomplete_and_broken_weights_are_refused(
    tiny_dir: Path, tmp_path: Path, progress: Any
) -> None:
    shutil.copy(tiny_dir / "config.json", tmp_path)
    tensors = load_file(tiny_dir / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelFilesError, match=r"lacks 1 .*layers.1.mlp.up_proj.weight"):
        load_model(tmp_path, CPU, "auto", 128, progress)
    whole = (tiny_dir / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(ModelFilesError, match="cannot be read"):
        load_model(tmp_path, CPU, "auto", 128, progress)
