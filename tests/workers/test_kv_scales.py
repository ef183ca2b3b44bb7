"""Scales of float8 blocks: of each KV head, from the checkpoint or measured, always the same."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockyard.cuda.kv_storage import gather_kv
from blockyard.workers.config import WorkerConfig
from blockyard.workers.description import ModelFilesError
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_scales import checkpoint_scales, settle_head_scales
from blockyard.workers.worker import ModelWorker

Maker = Callable[..., ModelWorker]
LAYERS, KV_HEADS = 2, 2
PROMPT = [5 * n % 300 for n in range(40)]


@pytest.fixture
def kv_dtype() -> str:
    return "fp8"


@pytest.fixture
def told_dir(tiny_dir: Path, tmp_path: Path) -> Callable[..., Path]:
    """The tiny model's directory with more tensors."""

    def make(**tensors: torch.Tensor) -> Path:
        shutil.copytree(tiny_dir, tmp_path / "told", dirs_exist_ok=True)
        weights = load_file(tmp_path / "told" / "model.safetensors")
        more = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
        save_file(weights | more, tmp_path / "told" / "model.safetensors", {"format": "pt"})
        return tmp_path / "told"

    return make


def _scales(worker: ModelWorker) -> torch.Tensor:
    cache = worker._cache
    assert cache is not None and cache.head_scales is not None
    return cache.head_scales.clone()


def _told(value: Any, layers: int = LAYERS) -> dict[str, torch.Tensor]:
    names = ("model__layers__{}__self_attn__k_scale", "model__layers__{}__self_attn__v_scale")
    return {
        name.format(layer): torch.as_tensor(value, dtype=torch.float32) * (1 + 2 * layer + part)
        for layer in range(layers)
        for part, name in enumerate(names)
    }


def test_measured_scales_hold_what_the_heads_have_with_room_to_spare(
    make_tiny_worker: Maker, make_scheduler: Callable[..., Any]
) -> None:
    scheduler = make_scheduler()
    worker: ModelWorker = scheduler.worker
    assert worker._cache is not None and not worker._cache.scaled
    scheduler.add("a", PROMPT)
    scheduler.run(a=64)
    scales = _scales(worker)
    assert worker._cache.scaled and scales.shape == (LAYERS, 2, KV_HEADS)
    assert torch.equal(torch.exp2(torch.log2(scales).round()), scales), "powers of two"
    # What a text's largest number takes of the 448 there are: less than all, and not too little.
    for layer in range(LAYERS):
        kv = worker._cache.layer(layer)
        used = torch.tensor([scheduler._tables["a"]])
        for part, numbers in enumerate(gather_kv(kv, used, torch.float32)):
            known = numbers[:, 0, : len(PROMPT)]
            share = known.abs().amax((1, 2)) / scales[layer, part] / 448
            assert bool((share < 1).all() and (share > 0.1).all()), share


def test_each_head_is_measured_by_itself(
    make_tiny_worker: Maker, make_scheduler: Callable[..., Any]
) -> None:
    plain, loud = make_scheduler(), make_scheduler()
    values = loud.worker._model.module.model.layers[1].self_attn.v_proj.weight
    values.data[:16] *= 8  # the first of two KV heads
    for scheduler in (plain, loud):
        scheduler.add("a", PROMPT)
        scheduler.run(a=64)
    factors = _scales(loud.worker) / _scales(plain.worker)
    assert factors[1, 1, 0] == 8
    factors[1, 1, 0] = 1
    assert torch.equal(factors, torch.ones(LAYERS, 2, KV_HEADS))


def test_every_load_and_every_pool_has_the_same_scales(
    make_tiny_worker: Maker, make_scheduler: Callable[..., Any]
) -> None:
    first, second = make_scheduler(), make_scheduler()
    first.add("a", PROMPT)
    first.run(a=64)
    # Another pool, as after a rank was replaced; another prompt before all others.
    second.worker.allocate(64)
    second.add("b", PROMPT[::-1])
    second.run(b=64)
    assert torch.equal(_scales(first.worker), _scales(second.worker))
    second.worker.allocate(64)
    assert not second.worker._cache.scaled


@pytest.mark.parametrize("value", [0.25, [0.25], [0.25, 0.5]])
def test_what_the_checkpoint_tells_counts(told_dir: Callable[..., Path], value: Any) -> None:
    config = WorkerConfig(
        str(told_dir(**_told(value))),
        512,
        device="cpu",
        kv_dtype="fp8",
        backend="torch",
        num_blocks=8,
        threads=1,
    )
    worker = ModelWorker(config)
    worker.load()
    worker.allocate(8)
    assert worker._cache is not None and worker._model is not None
    settle_head_scales(worker._cache, worker._model, config)
    wide = torch.as_tensor(value).reshape(-1).expand(KV_HEADS)
    factors = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert torch.equal(_scales(worker), factors[:, :, None] * wide)
    # A rank of two has the scale of its own head.
    own = KVCache(replace(worker._cache.geometry, kv_heads=1), 1, torch.device("cpu"))
    settle_head_scales(own, worker._model, replace(config, rank=1, world_size=2))
    assert own.head_scales is not None
    assert torch.equal(own.head_scales, factors[:, :, None] * wide[1:])


def test_no_scales_are_told_by_a_checkpoint_that_has_none(tiny_dir: Path) -> None:
    assert checkpoint_scales(tiny_dir, LAYERS) is None


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (_told(0.25, layers=1), "scales for 2 keys and values of 4"),
        (_told(0.25, layers=3), "scales for 6 keys and values of 4"),
        (_told(0.25) | {"model__layers__0__self_attn__k_scale": torch.ones(2)}, "different"),
        (_told(0.0), "not all above 0"),
        (_told(float("nan")), "not all above 0"),
    ],
)
def test_scales_that_cannot_be_are_refused(
    told_dir: Callable[..., Path], tensors: dict[str, torch.Tensor], words: str
) -> None:
    with pytest.raises(ModelFilesError, match=words):
        checkpoint_scales(told_dir(**tensors), LAYERS)
