"""Native attention against its twin in torch: what it computes and what it writes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from blockyard.cuda.backend import AttentionForm, HeadShape
from blockyard.cuda.reference import ReferenceBackend
from blockyard.workers.cpu.attention import NativeBackend
from blockyard.workers.cpu.library import NativePool

PLAIN = AttentionForm(scale=0.37)
MIXED: dict[str, list[int]] = {
    "starts": [0, 40, 17, 0, 31, 15, 3, 4, 700],
    "counts": [9, 1, 5, 1, 1, 1, 130, 1, 2],
}


def check(pool: NativePool, case: Any, form: AttentionForm = PLAIN) -> None:
    twin = case.copy()
    native, reference = NativeBackend(pool).begin(case.batch), ReferenceBackend().begin(twin.batch)
    native.write(case.kv, case.keys, case.values)
    reference.write(twin.kv, twin.keys, twin.values)
    assert torch.equal(case.pool.view(torch.uint8), twin.pool.view(torch.uint8))
    if case.kv.scales is not None:
        torch.testing.assert_close(case.kv.scales, twin.kv.scales, atol=0, rtol=0, equal_nan=True)
    expected = reference.attend(twin.kv, twin.queries, form)
    assert torch.isfinite(expected).all()
    torch.testing.assert_close(
        native.attend(case.kv, case.queries, form), expected, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("numbers", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1), (8, 2), (7, 1)])
def test_mixed_step(
    native_pool: NativePool,
    make_case: Callable[..., Any],
    heads: int,
    kv_heads: int,
    numbers: torch.dtype,
) -> None:
    check(native_pool, make_case(**MIXED, heads=heads, kv_heads=kv_heads, numbers=numbers))


@pytest.mark.parametrize("dim", [16, 48, 64, 80, 128])
@pytest.mark.parametrize("block_size", [1, 8, 16, 24])
def test_head_and_block_sizes(
    native_pool: NativePool, make_case: Callable[..., Any], dim: int, block_size: int
) -> None:
    check(
        native_pool,
        make_case(
            starts=[0, 40, 17, 69],
            counts=[70, 1, 5, 1],
            heads=6,
            kv_heads=2,
            dim=dim,
            block_size=block_size,
        ),
    )


@pytest.mark.parametrize("length", [1, 63, 64, 65, 255, 256, 257, 2000])
def test_one_token_alone_is_split_over_threads(
    native_pool: NativePool, make_case: Callable[..., Any], length: int
) -> None:
    check(native_pool, make_case(starts=[length - 1], counts=[1], heads=9, kv_heads=3, dim=64))


FORMS = {
    "window": AttentionForm(0.37, window=11),
    "window of one": AttentionForm(0.37, window=1),
    "window past a split": AttentionForm(0.37, window=300),
    "soft cap": AttentionForm(0.9, soft_cap=1.5),
    "sinks": AttentionForm(0.37, sinks=torch.tensor([0.5, -3.0, 4.0, 0.0, 1.0, 2.0])),
    "all": AttentionForm(0.9, window=7, soft_cap=2.0, sinks=torch.linspace(-1, 2, 6)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_forms(native_pool: NativePool, make_case: Callable[..., Any], form: AttentionForm) -> None:
    check(native_pool, make_case(**MIXED, heads=6, kv_heads=2), form)
    check(native_pool, make_case(starts=[1500], counts=[1], heads=6, kv_heads=2), form)


def test_what_left_the_window_may_hold_anything(
    native_pool: NativePool, make_case: Callable[..., Any]
) -> None:
    case = make_case(starts=[40, 40, 300], counts=[20, 1, 1], heads=4, kv_heads=2)
    form = AttentionForm(0.37, window=9)
    for row, start in enumerate((40, 40, 300)):
        for position in range(start + 1 - 9):
            block = int(case.batch.block_tables[row, position // 16])
            case.pool[block, 1, :, :, position % 16] = float("nan")
    check(native_pool, case, form)


def test_a_number_that_is_none_stays_none(
    native_pool: NativePool, make_case: Callable[..., Any]
) -> None:
    case = make_case(starts=[5, 9], counts=[1, 3], heads=2, kv_heads=1)
    case.keys[0] = float("nan")
    step = NativeBackend(native_pool).begin(case.batch)
    step.write(case.kv, case.keys, case.values)
    output = step.attend(case.kv, case.queries, PLAIN)
    assert output[0].isnan().all()
    assert output[1:].isfinite().all()


@pytest.mark.parametrize("turned", [16, 8, 4])
def test_rotation(native_pool: NativePool, make_case: Callable[..., Any], turned: int) -> None:
    case = make_case(**MIXED, heads=6, kv_heads=2)
    tokens = len(case.batch.slots)
    angles = torch.rand(tokens, turned // 2) * 6
    rows = torch.cat((case.queries, case.keys, case.values), dim=1)

    def turn(heads: torch.Tensor) -> torch.Tensor:
        cosines, sines = angles.cos()[:, None], angles.sin()[:, None]
        a, b = heads[..., : turned // 2], heads[..., turned // 2 : turned]
        turned_heads = (a * cosines - b * sines, b * cosines + a * sines, heads[..., turned:])
        return torch.cat(turned_heads, dim=-1)

    twin = case.copy()
    ReferenceBackend().begin(twin.batch).write(twin.kv, turn(case.keys), case.values)
    queries = (
        NativeBackend(native_pool)
        .begin(case.batch)
        .rotate_and_write(case.kv, rows.flatten(1), angles.cos(), angles.sin(), 6)
    )
    torch.testing.assert_close(queries, turn(case.queries))
    torch.testing.assert_close(case.pool, twin.pool, equal_nan=True)


def test_shapes_that_are_refused(native_pool: NativePool) -> None:
    backend = NativeBackend(native_pool)

    def refusal(heads: int, dim: int, kv_dtype: torch.dtype) -> str | None:
        return backend.refusal(HeadShape(heads, 2, dim, 16, torch.float32, kv_dtype), PLAIN)

    assert refusal(6, 64, torch.float32) is None
    assert "head size 40" in str(refusal(6, 40, torch.float32))
    assert "5 heads" in str(refusal(5, 64, torch.float32))
    assert "float16" in str(refusal(6, 64, torch.float16))
