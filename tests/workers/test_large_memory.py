"""Memory that is held is there before anybody writes to it; large memory comes as it is used."""

import re
import sys
from pathlib import Path

import pytest
import torch

from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.large_memory import held_memory, large_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tells by /proc what is there")
SIZE = 24 << 20


def _resident(memory: torch.Tensor) -> int:
    """Bytes of the mapping that the system has found."""
    for part in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        begin, end = (int(place, 16) for place in part.split(" ", 1)[0].split("-"))
        if begin <= memory.data_ptr() < end:
            found = re.search(r"\nRss: +(\d+) kB", part)
            assert found is not None
            return int(found[1]) << 10
    raise AssertionError("the memory is in no mapping")


def test_large_memory_is_found_as_it_is_written_to() -> None:
    memory = large_memory(SIZE)
    before = _resident(memory)
    memory.fill_(1)
    assert _resident(memory) >= before + SIZE


@pytest.mark.parametrize("size", [1, 4095, 4097, SIZE, SIZE + 1])
def test_held_memory_is_there_whole_and_zero(size: int) -> None:
    memory = held_memory(size)
    resident = _resident(memory)
    assert memory.shape == (size,) and memory.dtype is torch.uint8
    assert resident >= size
    assert not memory.any()


@pytest.mark.parametrize("size", [1 << 60, 1 << 70])
def test_memory_that_the_system_refuses_is_named(size: int) -> None:
    with pytest.raises(MemoryError, match=rf"{size >> 20:,} MiB"):
        held_memory(size)


def test_a_pool_on_the_cpu_is_held() -> None:
    geometry = KVGeometry(layers=8, kv_heads=4, head_dim=64, block_size=16, dtype=torch.float32)
    cache = KVCache(geometry, 24, torch.device("cpu"), num_host_blocks=24)
    assert cache.pool.shape == cache.host_pool.shape == (24, geometry.block_bytes)
    assert _resident(cache.pool) >= cache.pool.nbytes
