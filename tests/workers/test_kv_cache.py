"""The pool's shape, which swaps and kernels rely on."""

import pytest
import torch

from blockyard.workers.kv_cache import KVCache, KVGeometry

GEOMETRY = KVGeometry(layers=3, kv_heads=2, head_dim=8, block_size=4, dtype=torch.bfloat16)


def test_bytes_of_known_models() -> None:
    smollm = KVGeometry(layers=30, kv_heads=3, head_dim=64, block_size=16, dtype=torch.float32)
    assert smollm.token_bytes == 46_080
    assert smollm.block_bytes == 16 * 46_080
    llama = KVGeometry(layers=32, kv_heads=8, head_dim=128, block_size=16, dtype=torch.float16)
    assert llama.token_bytes == 131_072


def test_a_block_is_one_run_over_all_layers() -> None:
    cache = KVCache(GEOMETRY, 5, torch.device("cpu"))
    assert cache.num_blocks == 5
    assert cache.blocks.shape == (5, 3, 2, 2, 4, 8)
    assert cache.blocks[2].is_contiguous()
    assert cache.blocks.stride(0) * cache.blocks.element_size() == GEOMETRY.block_bytes


def test_layers_are_views_of_the_pool() -> None:
    cache = KVCache(GEOMETRY, 5, torch.device("cpu"))
    cache.blocks.zero_()
    cache.layer(1)[3, 1, 0, 2] = 7.0
    assert cache.blocks[3, 1, 1, 0, 2].eq(7.0).all()
    assert cache.blocks.count_nonzero() == 8


def test_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="0 blocks"):
        KVCache(GEOMETRY, 0, torch.device("cpu"))
