"""Checkpoints packed by AWQ and GPTQ: the weights that come out, whole and by rank."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from blockyard.workers.collectives import Communicator
from blockyard.workers.contract import UnsupportedModel
from blockyard.workers.description import ModelFilesError
from blockyard.workers.loader import load_model
from blockyard.workers.packed_linears import AwqPacking, GptqPacking, packing_of
from blockyard.workers.progress import SilentProgress

GROUP = 16
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass
class Packed:
    """A made-up linear: its parts, and the weight that they mean, worked out number by number."""

    parts: dict[str, torch.Tensor]
    weight: torch.Tensor


def _word(numbers: list[int], bits: int) -> int:
    word = 0
    for place, number in enumerate(numbers):
        word |= number << (bits * place)
    return word - (1 << 32) if word >= 1 << 31 else word


def _draw(outputs: int, inputs: int, bits: int, seed: int) -> tuple[Any, Any, torch.Tensor]:
    """Numbers `[inputs][outputs]`, zeros and scales `[groups][outputs]`; 0 and the greatest too."""
    draw = torch.Generator().manual_seed(seed)
    groups = inputs // GROUP
    numbers = torch.randint(0, 1 << bits, (inputs, outputs), generator=draw)
    zeros = torch.randint(0, 1 << bits, (groups, outputs), generator=draw)
    zeros[0, :2] = torch.tensor([0, (1 << bits) - 1])
    scales = (torch.rand(groups, outputs, generator=draw) * 0.1 + 0.01).half()
    return numbers.tolist(), zeros.tolist(), scales


def _weight(numbers: Any, zeros: Any, scales: torch.Tensor, groups: list[int]) -> torch.Tensor:
    weight = torch.empty(scales.shape[1], len(numbers))
    for column, group in enumerate(groups):
        for row in range(scales.shape[1]):
            scale = float(scales[group, row])
            weight[row, column] = scale * (numbers[column][row] - zeros[group][row])
    return weight


def awq(outputs: int, inputs: int, seed: int = 0) -> Packed:
    numbers, zeros, scales = _draw(outputs, inputs, 4, seed)

    def pack(rows: list[list[int]]) -> torch.Tensor:
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        words = [
            [_word([row[first + o] for o in order], 4) for first in range(0, outputs, 8)]
            for row in rows
        ]
        return torch.tensor(words, dtype=torch.int32)

    groups = [column // GROUP for column in range(inputs)]
    return Packed(
        {"qweight": pack(numbers), "qzeros": pack(zeros), "scales": scales},
        _weight(numbers, zeros, scales, groups),
    )


def gptq(
    outputs: int,
    inputs: int,
    seed: int = 0,
    bits: int = 4,
    exact_zeros: bool = False,
    ordered: bool = False,
) -> Packed:
    numbers, zeros, scales = _draw(outputs, inputs, bits, seed)
    count = 32 // bits
    groups = [column // GROUP for column in range(inputs)]
    if ordered:  # by activations: neighbours are of different groups
        shuffled = torch.randperm(inputs, generator=torch.Generator().manual_seed(seed))
        groups = [groups[place] for place in shuffled.tolist()]
    weights = [
        [_word([numbers[first + i][row] for i in range(count)], bits) for row in range(outputs)]
        for first in range(0, inputs, count)
    ]
    kept = [
        [zero if exact_zeros else (zero - 1) % (1 << bits) for zero in group] for group in zeros
    ]
    words = [
        [_word(group[first : first + count], bits) for first in range(0, outputs, count)]
        for group in kept
    ]
    return Packed(
        {
            "qweight": torch.tensor(weights, dtype=torch.int32),
            "qzeros": torch.tensor(words, dtype=torch.int32),
            "scales": scales,
            "g_idx": torch.tensor(groups, dtype=torch.int32),
        },
        _weight(numbers, zeros, scales, groups),
    )


def test_awq_means_scale_times_number_less_zero() -> None:
    packed = awq(24, 48)
    packing = AwqPacking()
    assert packing.shape(tuple(packed.parts["qweight"].shape)) == (24, 48)
    torch.testing.assert_close(packing.unpack(packed.parts), packed.weight)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("exact_zeros", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_gptq_means_the_same_in_another_order(bits: int, exact_zeros: bool, ordered: bool) -> None:
    packed = gptq(24, 48, bits=bits, exact_zeros=exact_zeros, ordered=ordered)
    packing = GptqPacking(bits, exact_zeros)
    assert packing.shape(tuple(packed.parts["qweight"].shape)) == (24, 48)
    torch.testing.assert_close(packing.unpack(packed.parts), packed.weight)
    if not ordered:
        del packed.parts["g_idx"]
        torch.testing.assert_close(packing.unpack(packed.parts), packed.weight)


def _pack_model(
    source: Path, folder: Path, settings: dict[str, Any], pack: Callable[..., Packed]
) -> dict[str, torch.Tensor]:
    """The tiny model with packed linears in `folder`; the weights that they mean, by name."""
    tensors = load_file(source / "model.safetensors")
    meant = {}
    for number, (name, weight) in enumerate(sorted(tensors.items())):
        if name.split(".")[-2] not in LINEARS:
            continue
        packed = pack(*weight.shape, seed=number)
        meant[name] = packed.weight
        del tensors[name]
        for kind, part in packed.parts.items():
            tensors[name.replace(".weight", f".{kind}")] = part
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    return meant


KINDS: dict[str, tuple[dict[str, Any], Callable[..., Packed]]] = {
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"},
        awq,
    ),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}, gptq),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_model_is_the_model_of_its_weights(
    kind: str, tiny_dir: Path, tiny_llama: LlamaForCausalLM, tmp_path: Path
) -> None:
    meant = _pack_model(tiny_dir, tmp_path, *KINDS[kind])
    cpu = torch.device("cpu")
    model = load_model(tmp_path, cpu, "float32", 64, SilentProgress())
    loaded = dict(model.module.named_parameters())
    assert len(meant) == 2 * len(LINEARS)
    for name, weight in {**tiny_llama.state_dict(), **meant}.items():
        torch.testing.assert_close(loaded[name].data, weight, msg=name)
    # Two ranks' columns and rows are parts of the same weights.
    parts = [
        dict(
            load_model(
                tmp_path, cpu, "float32", 64, SilentProgress(), Communicator(rank, 2)
            ).module.named_parameters()
        )
        for rank in range(2)
    ]
    for child, dim in (("self_attn.k_proj", 0), ("mlp.up_proj", 0), ("mlp.down_proj", 1)):
        name = f"model.layers.1.{child}.weight"
        joined = torch.cat([part[name].data for part in parts], dim=dim)
        torch.testing.assert_close(joined, meant[name], msg=name)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "layout gemv"),
        ({"quant_method": "awq", "bits": 8}, "with 8 bits"),
        ({"quant_method": "awq", "bits": 4, "zero_point": False}, "4 bits with zeros"),
        ({"quant_method": "gptq", "bits": 3}, "with 3 bits"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "format marlin"),
        ({"quant_method": "bitsandbytes"}, "quantised by 'bitsandbytes'"),
    ],
)
def test_other_packings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        packing_of(settings)


def test_nothing_packed_is_nothing() -> None:
    assert packing_of(None) is None and packing_of({}) is None


def test_parts_that_do_not_fit_one_another_are_named(tiny_dir: Path, tmp_path: Path) -> None:
    _pack_model(tiny_dir, tmp_path, *KINDS["awq"])
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.scales"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelFilesError, match=r"up_proj.weight is not packed as the config says"):
        load_model(tmp_path, torch.device("cpu"), "float32", 64, SilentProgress())
