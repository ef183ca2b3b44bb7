"""Block attention in torch against the definition, computed in float64 from plain lists."""

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from blockyard.cuda import reference
from blockyard.cuda.backend import AttentionBatch, AttentionForm, LayerKV
from blockyard.cuda.reference import ReferenceBackend

DIM = 8
PLAIN = AttentionForm(scale=0.37)


def _naive(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    start: int,
    form: AttentionForm,
) -> torch.Tensor:
    """`[tokens, heads, dim]` against `[positions, kv heads, dim]`, one query at a time."""
    sharing = queries.shape[1] // keys.shape[1]
    output = torch.zeros_like(queries, dtype=torch.float64)
    for token in range(queries.shape[0]):
        seen = start + token + 1
        first = 0 if form.window is None else max(0, seen - form.window)
        for head in range(queries.shape[1]):
            row = queries[token, head].double()
            scores = keys[first:seen, head // sharing].double() @ row * form.scale
            if form.soft_cap is not None:
                scores = torch.tanh(scores / form.soft_cap) * form.soft_cap
            if form.sinks is not None:
                scores = torch.cat((scores, form.sinks[head : head + 1].double()))
            weights = torch.softmax(scores, dim=0)[: seen - first]
            output[token, head] = weights @ values[first:seen, head // sharing].double()
    return output


def _check(
    starts: list[int],
    counts: list[int],
    heads: int,
    kv_heads: int,
    block_size: int,
    form: AttentionForm = PLAIN,
) -> None:
    torch.manual_seed(len(starts))
    lengths = [start + count for start, count in zip(starts, counts, strict=True)]
    keys = [torch.randn(length, kv_heads, DIM) for length in lengths]
    values = [torch.randn(length, kv_heads, DIM) for length in lengths]
    blocks = [-(-length // block_size) for length in lengths]
    order = torch.randperm(sum(blocks) + 3).tolist()
    pool = torch.full((len(order), 2, 2, kv_heads, block_size, DIM), float("nan"))
    layer = pool[:, 1]  # strided like a layer of a larger pool
    tables = np.full((len(starts), max(blocks)), order.pop(), dtype=np.int32)
    slots: list[int] = []
    for row, length in enumerate(lengths):
        for index in range(blocks[row]):
            tables[row, index] = order.pop()
        gone = 0 if form.window is None else max(0, starts[row] + 1 - form.window)
        for position in range(gone, length):  # what has left the window may be overwritten
            block, offset = int(tables[row, position // block_size]), position % block_size
            if position < starts[row]:
                layer[block, 0, :, offset] = keys[row][position]
                layer[block, 1, :, offset] = values[row][position]
            else:
                slots.append(block * block_size + offset)
    batch = AttentionBatch(
        counts=np.array(counts, dtype=np.int32),
        lengths=np.array(lengths, dtype=np.int32),
        block_tables=torch.from_numpy(tables),
        slots=torch.tensor(slots),
        block_size=block_size,
    )
    queries = torch.randn(sum(counts), heads, DIM)
    step = ReferenceBackend().begin(batch)
    step.write(
        LayerKV(layer),
        torch.cat([k[start:] for k, start in zip(keys, starts, strict=True)]),
        torch.cat([v[start:] for v, start in zip(values, starts, strict=True)]),
    )
    output = step.attend(LayerKV(layer), queries, form)
    parts: list[torch.Tensor] = list(torch.split(queries, counts))
    expected = torch.cat(
        [_naive(parts[i], keys[i], values[i], starts[i], form) for i in range(len(starts))]
    )
    torch.testing.assert_close(output.double(), expected, atol=2e-6, rtol=1e-5)
    assert torch.isnan(pool[:, 0]).all(), "another layer was written to"


@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
def test_mixed_step(block_size: int, heads: int, kv_heads: int) -> None:
    _check(
        starts=[0, 40, 17, 0, 31, 15, 3],
        counts=[9, 1, 5, 1, 1, 1, 30],
        heads=heads,
        kv_heads=kv_heads,
        block_size=block_size,
    )


def test_many_decodes_of_any_length() -> None:
    _check(starts=list(range(0, 60, 3)), counts=[1] * 20, heads=4, kv_heads=2, block_size=4)


def test_stale_values_are_silenced_whatever_kernel_torch_takes() -> None:
    with sdpa_kernel(SDPBackend.MATH):  # the plain formula, where 0 times NaN is NaN
        _check(starts=[5, 6, 9, 0], counts=[1, 1, 1, 7], heads=4, kv_heads=2, block_size=4)


def test_small_workspace_and_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "WORKSPACE_BYTES", 2 * 2 * DIM * 4 * 50)  # 50 tokens
    monkeypatch.setattr(reference, "TILE_TOKENS", 4)
    _check(
        starts=[20, 21, 20, 19, 64, 0, 5],
        counts=[1, 1, 1, 1, 1, 11, 8],
        heads=4,
        kv_heads=2,
        block_size=4,
    )


FORMS = {
    "window": AttentionForm(0.37, window=11),
    "window of one": AttentionForm(0.37, window=1),
    "soft cap": AttentionForm(0.9, soft_cap=1.5),
    "sinks": AttentionForm(0.37, sinks=torch.tensor([0.5, -3.0, 4.0, 0.0, 1.0, 2.0])),
    "all": AttentionForm(0.9, window=7, soft_cap=2.0, sinks=torch.linspace(-1, 2, 6)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_forms(form: AttentionForm) -> None:
    _check(
        starts=[0, 40, 17, 0, 31, 15, 3, 4],
        counts=[9, 1, 5, 1, 1, 1, 30, 1],
        heads=6,
        kv_heads=2,
        block_size=4,
        form=form,
    )


@pytest.mark.parametrize(
    ("wrong", "named"), [({"window": 0}, "window is 0"), ({"soft_cap": 0.0}, "soft cap is 0")]
)
def test_a_form_that_means_nothing_is_refused(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        AttentionForm(1.0, **wrong)  # type: ignore[arg-type]
