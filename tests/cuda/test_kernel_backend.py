"""The kernels as a backend: steps of all kinds of requests, beside the torch backend."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from blockyard.cuda.backend import AttentionForm, FusedStep, HeadShape
from blockyard.cuda.emulator.build import EmulatedLibrary
from blockyard.cuda.kernel_backend import KernelBackend

CPU = torch.device("cpu")
BF16 = torch.bfloat16
SHAPE = HeadShape(8, 2, 64, 16, BF16, BF16)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "form"),
    [
        (6, 2, AttentionForm(0.125)),
        (6, 2, AttentionForm(0.125, window=20, sinks=torch.linspace(-1, 1, 6))),
        # More query heads for one KV head than a decode tile has rows.
        pytest.param(20, 1, AttentionForm(0.125), marks=pytest.mark.slow),
        pytest.param(4, 2, AttentionForm(0.5, soft_cap=3.0), marks=pytest.mark.slow),
    ],
)
def test_mixed_steps(
    emulated: EmulatedLibrary, make_case: Any, heads: int, kv_heads: int, form: AttentionForm
) -> None:
    case = make_case(
        [40, 1, 0, 33, 70, 5],  # the third only fills up the step
        [12, 1, 1, 1, 70, 5],
        heads=heads,
        kv_heads=kv_heads,
        form=form,
    )
    step = KernelBackend(emulated, CPU, slots=8).begin(case.batch)
    assert case.worst(step.attend(case.kv, case.queries, case.form)) < 1.6e-2
    # A layer of the same step whose queries are part of a larger tensor.
    wide = torch.randn(len(case.queries), heads + 3, 64).to(BF16)[:, :heads]
    part = replace(case, queries=wide)
    assert part.worst(step.attend(case.kv, wide, case.form)) < 1.6e-2


def test_blocks_that_requests_share_are_read_once(asked: Any, make_case: Any) -> None:
    """Of 18 requests 17 begin with the same blocks, and one computes several tokens."""
    case = make_case([20, *[260] * 17], [9, *[1] * 17], heads=2, kv_heads=1, shared_blocks=16)
    step = KernelBackend(asked, CPU, slots=8).begin(case.batch)
    assert case.worst(step.attend(case.kv, case.queries, case.form)) < 1.6e-2
    assert "attend_shared_prefix" in asked.names
    asked.names.clear()
    batch = replace(case.batch, host_tables=None)
    KernelBackend(asked, CPU, slots=8).begin(batch).attend(case.kv, case.queries, case.form)
    assert "attend_shared_prefix" not in asked.names


def test_what_is_written_is_what_is_read(emulated: EmulatedLibrary, make_case: Any) -> None:
    case = make_case([20, 17], [20, 1])
    step = KernelBackend(emulated, CPU, slots=8).begin(case.batch)
    keys, values = torch.randn(2, 21, 2, 64).to(BF16)
    step.write(case.kv, keys, values)
    blocks, offsets = case.batch.slots // 16, case.batch.slots % 16
    assert torch.equal(case.kv.blocks[blocks, 0, :, offsets], keys)
    assert torch.equal(case.kv.blocks[blocks, 1, :, offsets], values)


def test_rotated_keys_are_stored_and_rotated_queries_attend(
    emulated: EmulatedLibrary, make_case: Any
) -> None:
    case = make_case([20, 17], [20, 1])
    step = KernelBackend(emulated, CPU, slots=8).begin(case.batch)
    assert isinstance(step, FusedStep)
    projected = torch.randn(21, (4 + 2 * 2) * 64).to(BF16)
    angles = torch.rand(21, 32) * 6
    queries = step.rotate_and_write(case.kv, projected, angles.cos(), angles.sin(), 4)
    heads = projected.view(21, 8, 64).float()
    first, second = heads[:, :6].chunk(2, -1)
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
    torch.testing.assert_close(queries.float(), turned[:, :4], atol=2e-2, rtol=1e-2)
    blocks, offsets = case.batch.slots // 16, case.batch.slots % 16
    stored = case.kv.blocks[blocks, 0, :, offsets].float()
    torch.testing.assert_close(stored, turned[:, 4:], atol=2e-2, rtol=1e-2)
    assert torch.equal(case.kv.blocks[blocks, 1, :, offsets].float(), heads[:, 6:])


def test_its_layers_are_fused(emulated: EmulatedLibrary) -> None:
    fused = KernelBackend(emulated, CPU, slots=8).fused
    assert fused is not None
    rows = torch.randn(3, 64).to(BF16)
    normed = fused.rms_norm(rows, torch.ones(64, dtype=BF16), 1e-6)
    expected = rows.float() / rows.float().square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(normed.float(), expected, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (SHAPE, None),
        (replace(SHAPE, kv_dtype=torch.float8_e4m3fn), None),
        (replace(SHAPE, head_dim=16, block_size=5, heads=34), None),
        (replace(SHAPE, dtype=torch.float32), "bfloat16 and float16"),
        (replace(SHAPE, kv_dtype=torch.int8), "float8_e4m3fn; asked is torch.int8"),
        (replace(SHAPE, head_dim=72), "head size is 72"),
        (replace(SHAPE, head_dim=272), "head size is 272"),
    ],
)
def test_what_there_is_no_kernel_for_is_refused(
    emulated: EmulatedLibrary, shape: HeadShape, reason: str | None
) -> None:
    refusal = KernelBackend(emulated, CPU, slots=8).refusal(shape, AttentionForm(1.0))
    if reason is None:
        assert refusal is None
    else:
        assert refusal is not None and reason in refusal
