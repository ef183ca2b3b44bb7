"""Adapters on disk: what is read of them, and what is refused by name."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from blockyard.scheduler.block_keys import PrefixExtras
from blockyard.workers.adapter_description import AdapterRefused, describe_adapter
from blockyard.workers.adapter_sites import linear_shapes, linear_sites
from blockyard.workers.adapter_weights import read_adapter

Make = Callable[..., Any]
SITE = "model.layers.0.self_attn.q_proj"


def read(folder: Path, model: Any, max_rank: int = 16) -> dict[str, Any]:
    sites = linear_sites(linear_shapes(model), {}, model)
    adapter = describe_adapter(folder, "a", max_rank)
    return read_adapter(adapter, sites, max_rank, torch.float32)


def test_a_description_names_version_and_rank(
    tmp_path: Path, tiny_llama: LlamaForCausalLM, make_adapter: Make
) -> None:
    for name, seed in (("one", 1), ("two", 2), ("same", 1)):
        make_adapter(tmp_path / name, tiny_llama, seed, rank=4)
    one, two, same = (describe_adapter(tmp_path / n, "a", 16) for n in ("one", "two", "same"))
    assert one.rank == 4
    assert one.version == same.version != two.version
    extras = PrefixExtras(adapter="a", adapter_version=one.version)
    assert one.adapter_id == extras.adapter_id
    config = json.loads((tmp_path / "same/adapter_config.json").read_text())
    (tmp_path / "same/adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 3}))
    assert describe_adapter(tmp_path / "same", "a", 16).version != one.version


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        pytest.param({}, 2.0, id="alpha over rank"),
        pytest.param({"use_rslora": True}, 4.0, id="over its root"),
        pytest.param({"alpha_pattern": {"q_proj": 2}}, 0.5, id="alpha of a kind of linear"),
        pytest.param({"alpha_pattern": {"1.self_attn.q_proj": 2}}, 2.0, id="of another linear"),
        pytest.param({"lora_dropout": 0.1, "target_modules": ["q_proj"]}, 2.0, id="for training"),
    ],
)
def test_the_scale_is_in_the_second_matrix(
    tmp_path: Path,
    tiny_llama: LlamaForCausalLM,
    make_adapter: Make,
    config: dict[str, Any],
    scale: float,
) -> None:
    kept: dict[str, torch.Tensor] = {}
    make_adapter(
        tmp_path, tiny_llama, 1, rank=4, alpha=8.0, targets=("q_proj",), config=config,
        alter=kept.update,
    )  # fmt: skip
    found = read(tmp_path, tiny_llama)
    assert set(found) == {f"model.layers.{layer}.self_attn.q_proj" for layer in (0, 1)}
    down, up = (kept[f"base_model.model.{SITE}.lora_{half}.weight"] for half in "AB")
    assert torch.equal(found[SITE].down, down)
    assert torch.allclose(found[SITE].up, up.T * scale)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"target_parameters": ["experts.down_proj"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens"),
        ({"some_new_kind": {"x": 1}}, "some_new_kind"),
        ({"r": 0}, "r is 0"),
        ({"r": 4.5}, "whole number"),
        ({"r": 32}, "rank is 32, this server takes up to 16"),
        ({"rank_pattern": {"q_proj": 64}}, "rank is 64"),
        ({"lora_alpha": None}, "lora_alpha is None"),
        ({"lora_alpha": float("inf")}, "lora_alpha is inf"),
        ({"lora_alpha": 10**400}, "lora_alpha is 1000"),
        ({"alpha_pattern": {"q_proj": float("inf")}}, "alpha_pattern is not an object of numbers"),
    ],
)
def test_what_a_configuration_asks_for_is_refused_by_name(
    tmp_path: Path,
    tiny_llama: LlamaForCausalLM,
    make_adapter: Make,
    config: dict[str, Any],
    named: str,
) -> None:
    make_adapter(tmp_path, tiny_llama, 1)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    with pytest.raises(AdapterRefused, match=named):
        describe_adapter(tmp_path, "a", 16)


@pytest.mark.parametrize("content", ["{", "[" * 100_000, "[]", '{"peft_type": "LORA"}', "\0"])
def test_configurations_that_are_none_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(AdapterRefused, match=r"is no JSON|is not a JSON object|r is None"):
        describe_adapter(tmp_path, "a", 16)


def test_what_is_said_of_a_configuration_is_short(
    tmp_path: Path, tiny_llama: LlamaForCausalLM, make_adapter: Make
) -> None:
    for config in ({"use_dora": "x" * 99_999}, {"y" * 99_999: 1}, {"bias": ["all"] * 99_999}):
        make_adapter(tmp_path, tiny_llama, 1, config=config)
        with pytest.raises(AdapterRefused) as refused:
            describe_adapter(tmp_path, "a", 16)
        assert len(str(refused.value)) < 600


def test_what_half_precision_cannot_hold_is_refused(
    tmp_path: Path, tiny_llama: LlamaForCausalLM, make_adapter: Make
) -> None:
    """Finite on disk; computed with it would make other adapters' rows no numbers."""
    make_adapter(tmp_path, tiny_llama, 1, config={"lora_alpha": 1e6})
    sites = linear_sites(linear_shapes(tiny_llama), {}, tiny_llama)
    adapter = describe_adapter(tmp_path, "a", 16)
    read_adapter(adapter, sites, 16, torch.bfloat16)
    with pytest.raises(AdapterRefused, match=r"lora_B.weight .* as float16 with its scale"):
        read_adapter(adapter, sites, 16, torch.float16)


def rename(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def alter(tensors: dict[str, Any]) -> None:
        name = f"base_model.model.{SITE}.{old}"
        tensors[name.replace(old, new) if "." not in new else new] = tensors.pop(name)

    return alter


def spoil(value: float) -> Callable[[dict[str, Any]], None]:
    def alter(tensors: dict[str, Any]) -> None:
        tensors[f"base_model.model.{SITE}.lora_B.weight"][3, 1] = value

    return alter


def narrow(tensors: dict[str, Any]) -> None:
    name = f"base_model.model.{SITE}.lora_A.weight"
    tensors[name] = tensors[name][:, :-1]


@pytest.mark.parametrize(
    ("alter", "named"),
    [
        (rename("lora_A.weight", "lora_magnitude_vector"), "DoRA"),
        (rename("lora_A.weight", "base_model.model.model.embed_tokens.lora_embedding_A"), "embed"),
        (rename("lora_A.weight", "base_model.model.lm_head.weight"), "only pairs"),
        (rename("lora_A.weight", "base_model.model.lm_head.lora_A.weight"), "alone"),
        (narrow, "4 x 63 and 64 x 4; .*takes 64 columns and makes 64: .*another model"),
        (spoil(float("nan")), "no finite numbers"),
        (spoil(float("inf")), "no finite numbers"),
        (lambda tensors: tensors.clear(), "no tensors"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    tmp_path: Path,
    tiny_llama: LlamaForCausalLM,
    make_adapter: Make,
    alter: Callable[[dict[str, Any]], None],
    named: str,
) -> None:
    make_adapter(tmp_path, tiny_llama, 1, alter=alter)
    with pytest.raises(AdapterRefused, match=named):
        read(tmp_path, tiny_llama)


def test_a_linear_that_is_not_there_is_named(
    tmp_path: Path, tiny_llama: LlamaForCausalLM, make_adapter: Make
) -> None:
    def move(tensors: dict[str, Any]) -> None:
        for half in "AB":
            tensor = tensors.pop(f"base_model.model.{SITE}.lora_{half}.weight")
            tensors[f"base_model.model.lm_head.lora_{half}.weight"] = tensor

    make_adapter(tmp_path, tiny_llama, 1, alter=move)
    with pytest.raises(AdapterRefused, match=r"targets lm_head, .* such are .*q_proj"):
        read(tmp_path, tiny_llama)


def test_files_that_changed_since_are_refused(
    tmp_path: Path, tiny_llama: LlamaForCausalLM, make_adapter: Make
) -> None:
    make_adapter(tmp_path, tiny_llama, 1)
    adapter = describe_adapter(tmp_path, "a", 16)
    make_adapter(tmp_path, tiny_llama, 2)
    sites = linear_sites(linear_shapes(tiny_llama), {}, tiny_llama)
    with pytest.raises(AdapterRefused, match="have changed"):
        read_adapter(adapter, sites, 16, torch.float32)


def test_pickles_and_missing_files_are_refused(
    tmp_path: Path, tiny_llama: LlamaForCausalLM, make_adapter: Make
) -> None:
    with pytest.raises(AdapterRefused, match=r"holds no adapter_config\.json"):
        describe_adapter(tmp_path, "a", 16)
    make_adapter(tmp_path, tiny_llama, 1)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(AdapterRefused, match=r"adapter_model\.bin, which can run code"):
        describe_adapter(tmp_path, "a", 16)


@pytest.mark.parametrize("name", ["", "a b", "../a", "a@b", "x" * 200])
def test_names_that_could_stand_for_no_model_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(AdapterRefused, match="no name for an adapter"):
        describe_adapter(tmp_path, name, 16)


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_refused_and_makes_nobody_wait(
    tmp_path: Path, tiny_llama: LlamaForCausalLM, make_adapter: Make, file: str
) -> None:
    make_adapter(tmp_path, tiny_llama, 1, rank=4)
    (tmp_path / file).unlink()
    os.mkfifo(tmp_path / file)
    words = "no regular file" if file.endswith("json") else "holds no adapter_model"
    with pytest.raises(AdapterRefused, match=words):
        describe_adapter(tmp_path, "a", 16)
    (tmp_path / file).unlink()
    (tmp_path / file).symlink_to("/dev/zero")
    with pytest.raises(AdapterRefused, match=words):
        describe_adapter(tmp_path, "a", 16)


def test_a_configuration_without_end_is_not_read_to_it(
    tmp_path: Path, tiny_llama: LlamaForCausalLM, make_adapter: Make
) -> None:
    make_adapter(tmp_path, tiny_llama, 1, rank=4)
    config = (tmp_path / "adapter_config.json").read_text()
    (tmp_path / "adapter_config.json").write_text(config + " " * (1 << 20))
    assert describe_adapter(tmp_path, "a", 16).rank == 4  # spaces behind it mean nothing
    (tmp_path / "adapter_config.json").write_text(" " * (1 << 20) + config)
    with pytest.raises(AdapterRefused, match="is no JSON"):
        describe_adapter(tmp_path, "a", 16)
