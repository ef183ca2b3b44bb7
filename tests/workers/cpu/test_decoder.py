"""Whole native layers against the model's own modules; what is recognised, and what is not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from blockyard.cuda.reference import ReferenceBackend
from blockyard.workers.attention import CachedAttention
from blockyard.workers.collectives import Communicator
from blockyard.workers.contract import UnsupportedModel
from blockyard.workers.cpu import fuse
from blockyard.workers.cpu.attention import NativeBackend
from blockyard.workers.cpu.compiler import NativeUnavailable
from blockyard.workers.cpu.fuse import put_on_cpu_path
from blockyard.workers.cpu.library import NativePool
from blockyard.workers.cpu.packed import WeightStorage
from blockyard.workers.cpu.recognise import recognise
from blockyard.workers.loader import load_model
from blockyard.workers.model import DecoderModel
from blockyard.workers.progress import SilentProgress

CONTEXT = 96
COMMON: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}


def save(make: Callable[..., PreTrainedModel], config: PretrainedConfig, folder: Path) -> Path:
    torch.manual_seed(3)
    model = make(config)
    with torch.no_grad():  # norms and biases that are 1 and 0 would hide their absence
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.2)
    model.save_pretrained(folder)
    return folder


def load(folder: Path, dtype: str = "auto", rank: int = 0, size: int = 1) -> DecoderModel:
    own = Communicator(rank, size)
    return load_model(folder, torch.device("cpu"), dtype, CONTEXT, SilentProgress(), own)


FAMILY: dict[str, tuple[Callable[..., PreTrainedModel], PretrainedConfig]] = {
    "llama": (LlamaForCausalLM, LlamaConfig(**COMMON)),
    "llama tied": (LlamaForCausalLM, LlamaConfig(**COMMON, tie_word_embeddings=True)),
    "llama biased": (LlamaForCausalLM, LlamaConfig(**COMMON, attention_bias=True)),
    "llama 3 rope": (
        LlamaForCausalLM,
        LlamaConfig(
            **COMMON,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
    ),
    "mistral with a window": (MistralForCausalLM, MistralConfig(**COMMON, sliding_window=7)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**COMMON)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**COMMON)),
}


@pytest.mark.parametrize(
    ("kind", "storage"),
    [(kind, WeightStorage.FP32) for kind in FAMILY]
    + [("llama tied", storage) for storage in list(WeightStorage)[1:]]
    + [("qwen3", WeightStorage.INT4)],
)
def test_native_layers_equal_the_modules(
    native_pool: NativePool, tmp_path: Path, kind: str, storage: WeightStorage
) -> None:
    model = load(save(*FAMILY[kind], tmp_path))
    before = model.weight_bytes
    path = put_on_cpu_path(model, 2, CONTEXT, storage)
    assert path.reason == ""
    assert isinstance(path.backend, NativeBackend)
    if storage is WeightStorage.FP32:
        assert model.weight_bytes < before * 1.6  # padding; not the weights twice
    else:
        assert model.weight_bytes < before * 0.9


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("tied", [False, True])
def test_a_rank_runs_its_part_in_halves_of_layers(
    native_pool: NativePool, tmp_path: Path, rank: int, tied: bool
) -> None:
    """A rank that stands alone takes its own products for sums, in modules and natively."""
    shape = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3}
    config = LlamaConfig(**{**COMMON, **shape}, attention_bias=True, tie_word_embeddings=tied)
    model = load(save(LlamaForCausalLM, config, tmp_path), rank=rank, size=2)
    assert model.attention.kv_heads == 2 - rank
    before = model.weight_bytes
    path = put_on_cpu_path(model, 2, CONTEXT, WeightStorage.FP32)
    assert path.reason == ""
    assert model.weight_bytes < before * 1.15  # padding; a tied embedding is held once


def test_a_difference_is_found_and_the_modules_stay_in_use(
    native_pool: NativePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(save(*FAMILY["llama"], tmp_path))

    def with_gate_and_up_exchanged(module: torch.nn.Module) -> Any:
        parts = recognise(module)
        first = parts.layers[0]
        object.__setattr__(first, "gate", parts.layers[0].up)
        return parts

    monkeypatch.setattr(fuse, "recognise", with_gate_and_up_exchanged)
    path = put_on_cpu_path(model, 2, CONTEXT, WeightStorage.FP32)
    assert "differ from the model's" in path.reason
    assert path.name == "native attention under torch layers"
    assert model.module.lm_head.weight.numel() > 0
    with pytest.raises(UnsupportedModel, match="int8"):
        put_on_cpu_path(model, 2, CONTEXT, WeightStorage.INT8)


def test_another_family_keeps_its_modules_and_gets_native_attention(
    native_pool: NativePool, tmp_path: Path
) -> None:
    config = Gemma2Config(**COMMON, query_pre_attn_scalar=16, sliding_window=7)
    path = put_on_cpu_path(
        load(save(Gemma2ForCausalLM, config, tmp_path)), 2, CONTEXT, WeightStorage.FP32
    )
    assert "layer 0 differs" in path.reason
    assert isinstance(path.backend, NativeBackend)


def test_another_dtype_keeps_its_modules(native_pool: NativePool, tmp_path: Path) -> None:
    model = load(save(*FAMILY["llama"], tmp_path), "bfloat16")
    path = put_on_cpu_path(model, 2, CONTEXT, WeightStorage.FP32)
    assert "float32" in path.reason


def test_without_native_code_torch_serves_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable() -> None:
        raise NativeUnavailable("no C++ compiler")

    monkeypatch.setattr(fuse, "load_library", unavailable)
    model = load(save(*FAMILY["llama"], tmp_path))
    path = put_on_cpu_path(model, 2, CONTEXT, WeightStorage.FP32)
    assert (path.name, path.reason) == ("plain torch", "no C++ compiler")
    assert isinstance(path.backend, ReferenceBackend)
    with pytest.raises(UnsupportedModel, match="int4: no C"):
        put_on_cpu_path(model, 2, CONTEXT, WeightStorage.INT4)


def test_a_position_outside_the_context_is_refused(
    native_pool: NativePool, tmp_path: Path, make_case: Callable[..., Any]
) -> None:
    model = load(save(*FAMILY["llama"], tmp_path))
    put_on_cpu_path(model, 2, CONTEXT, WeightStorage.FP32)
    attention: Any = CachedAttention(
        None,  # type: ignore[arg-type]
        NativeBackend(native_pool).begin(make_case([0], [1], 4, 2).batch),
    )
    with pytest.raises(ValueError, match=f"position {CONTEXT}"):
        model.forward(torch.tensor([5]), torch.tensor([CONTEXT]), torch.tensor([0]), attention)
