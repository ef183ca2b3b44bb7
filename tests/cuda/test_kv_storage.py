"""Keys and values come back from blocks as they were stored, within what their dtype can hold."""

import pytest
import torch

from blockyard.cuda.backend import LayerKV
from blockyard.cuda.kv_storage import gather_kv, store_kv

BLOCKS, HEADS, BLOCK_SIZE, DIM = 5, 3, 4, 8
SCALES = torch.tensor([[0.02, 0.5, 3.0], [1.0, 0.1, 0.03]])


def _layer(dtype: torch.dtype, scales: torch.Tensor | None) -> LayerKV:
    pool = torch.full((BLOCKS, 2, 2, HEADS, BLOCK_SIZE, DIM), 0.0).to(dtype)
    return LayerKV(pool[:, 1], scales)


def _stored(kv: LayerKV) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two rows of two blocks each, filled in a random order: what went in and what comes back."""
    torch.manual_seed(0)
    tables = torch.tensor([[3, 0], [4, 1]])
    tokens = torch.randperm(2 * 2 * BLOCK_SIZE)
    keys, values = torch.randn(2, len(tokens), HEADS, DIM) * 4
    positions = tokens % (2 * BLOCK_SIZE)
    blocks = tables[tokens // (2 * BLOCK_SIZE), positions // BLOCK_SIZE]
    store_kv(kv, blocks, positions % BLOCK_SIZE, keys, values)
    order = tokens.argsort()
    expected = [
        part[order].view(2, 2 * BLOCK_SIZE, HEADS, DIM).permute(2, 0, 1, 3)
        for part in (keys, values)
    ]
    return *expected, *gather_kv(kv, tables, torch.float32)


def test_a_pool_of_the_models_dtype_keeps_every_bit() -> None:
    keys, values, got_keys, got_values = _stored(_layer(torch.float32, None))
    assert torch.equal(got_keys, keys)
    assert torch.equal(got_values, values)


def test_float8_rounds_to_its_three_bits_and_clamps_at_its_largest() -> None:
    keys, values, got_keys, got_values = _stored(_layer(torch.float8_e4m3fn, SCALES))
    for part, got, scales in ((keys, got_keys, SCALES[0]), (values, got_values, SCALES[1])):
        scale = scales[:, None, None, None]
        clamped = part.clamp(-448 * scale, 448 * scale)
        # Half of the last of three bits, or half of the least number there is.
        allowed = torch.maximum(clamped.abs() / 16, scale * 2**-10)
        assert ((got - clamped).abs() <= allowed * 1.0001).all()
        assert not torch.equal(got, clamped)


def test_int8_gives_each_slot_of_a_head_its_own_scale() -> None:
    scales = torch.full((BLOCKS, 2, HEADS, BLOCK_SIZE), float("nan"))
    keys, values, got_keys, got_values = _stored(_layer(torch.int8, scales))
    for part, got in ((keys, got_keys), (values, got_values)):
        most = part.abs().amax(-1, keepdim=True)
        assert ((got - part).abs() <= most / 127 / 2 * 1.0001).all()
    assert torch.isnan(scales[2]).all(), "a block that nothing was written to"


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_zeros_stay_zeros(dtype: torch.dtype) -> None:
    scales = SCALES if dtype is torch.float8_e4m3fn else torch.ones(BLOCKS, 2, HEADS, BLOCK_SIZE)
    kv = _layer(dtype, scales)
    zeros = torch.zeros(1, HEADS, DIM)
    store_kv(kv, torch.tensor([2]), torch.tensor([1]), zeros, zeros)
    for part in gather_kv(kv, torch.tensor([[2]]), torch.float32):
        assert torch.equal(part[:, 0, 1], torch.zeros(HEADS, DIM))
