"""Blocks of two ranks are called alike only where one is worth as much as the other."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from blockyard.workers.config import WorkerConfig
from blockyard.workers.host_memory import HostMemory, host_memory_of
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVGeometry

CONFIG = WorkerConfig("", 64, block_size=4, num_blocks=2)
SHAPE = KVGeometry(2, 1, 8, 4, torch.float8_e4m3fn)
BESIDE = replace(SHAPE, layers=1)


def memory(
    config: WorkerConfig = CONFIG, shape: KVGeometry = SHAPE, scale: float | None = 2.0
) -> HostMemory:
    cache = KVCache(shape, 2, torch.device("cpu"), 3)
    if scale is not None and shape.dtype is torch.float8_e4m3fn:
        cache.set_head_scales(torch.full((shape.layers, 2, 1), scale))
    found = host_memory_of(cache, config)
    assert found is not None and found.num_blocks == 3
    return found


@pytest.mark.parametrize(
    "other",
    [
        {"scale": 2.5},
        {"config": replace(CONFIG, rank=1, world_size=2)},
        {"config": replace(CONFIG, weights="int8")},
        {"config": replace(CONFIG, dtype="bfloat16")},
        {"shape": replace(SHAPE, dtype=torch.int8)},
        {"shape": replace(SHAPE, kv_heads=2, head_dim=4)},
    ],
)
def test_what_is_worth_something_else_is_called_otherwise(other: dict[str, Any]) -> None:
    assert memory().layout == memory().layout != ""
    assert memory(**other).layout not in ("", memory().layout)


def test_without_scales_nobody_knows_what_numbers_are_worth() -> None:
    assert memory(scale=None).layout == ""
    both = KVCache(replace(SHAPE, beside=BESIDE), 2, torch.device("cpu"), 3)
    both.set_head_scales(torch.ones(2, 2, 1))
    waits = host_memory_of(both, CONFIG)
    assert waits is not None and waits.layout == "", "those of the draft model are still to come"
    assert both.beside is not None
    both.beside.set_head_scales(torch.ones(1, 2, 1))
    found = host_memory_of(both, CONFIG)
    assert found is not None and found.layout not in ("", memory(scale=1.0).layout)


def test_a_run_of_blocks_lies_within_the_pool() -> None:
    found = memory()
    assert len(found.run(1, 2)) == 2 * found.block_bytes
    for first, count in ((-1, 1), (2, 2), (0, -1)):
        with pytest.raises(ValueError, match="there are 3"):
            found.run(first, count)
