"""Shared prefixes: who shares what, and the kernel that reads it once, against float64."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from blockyard.cuda import decode_plans
from blockyard.cuda.backend import AttentionForm
from blockyard.cuda.decode import DecodeAttention, DecodeRows
from blockyard.cuda.emulator.build import EmulatedLibrary, Schedule
from blockyard.cuda.shared_prefix import SharedPrefix, find_shared_prefixes, plan_prefixes

BF16, FP16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
TOLERANCE = {BF16: 1.6e-2, FP16: 2e-3}


@pytest.mark.parametrize(
    ("tables", "lengths", "expected"),
    [
        ([[3, 4, 5], [3, 4, 6]], [12, 12], [SharedPrefix((0, 1), 8)]),
        ([[3, 4, 5], [3, 4, 5]], [12, 12], [SharedPrefix((0, 1), 12)]),
        # The second block of the second request is not full: it is its own.
        ([[3, 4, 5], [3, 4, 9]], [12, 7], [SharedPrefix((0, 1), 4)]),
        ([[3, 4], [7, 4], [3, 8], [7, 4]], [8, 8, 9, 8], [(0, 2, 4), (1, 3, 8)]),
        ([[3, 4], [5, 6]], [8, 8], []),
        ([[3, 4], [3, 4]], [3, 8], []),
        ([[3, 4]], [8], []),
    ],
)
def test_groups_share_leading_full_blocks(
    tables: list[list[int]], lengths: list[int], expected: Sequence[Any]
) -> None:
    found = find_shared_prefixes(
        np.array(tables, np.int32), np.array(lengths, np.int32), 4, least_saving_tokens=4
    )
    wanted = [
        each if isinstance(each, SharedPrefix) else SharedPrefix(each[:-1], each[-1])
        for each in expected
    ]
    assert found == wanted


def test_what_saves_too_little_is_left_alone() -> None:
    tables = np.tile(np.arange(8, dtype=np.int32), (3, 1))
    lengths = np.full(3, 32, dtype=np.int32)
    assert len(find_shared_prefixes(tables, lengths, 4, least_saving_tokens=64)) == 1
    assert find_shared_prefixes(tables, lengths, 4, least_saving_tokens=65) == []


@pytest.mark.parametrize("slots", [1, 8, 1000])
def test_every_position_of_a_prefix_is_read_once_for_every_row(slots: int) -> None:
    groups = [SharedPrefix((0, 2, 5), 1040), SharedPrefix((1, 3), 16)]
    plan = plan_prefixes(groups, 6, kv_heads=2, sharing=3, tile_rows=8, slots=slots)
    read = [np.zeros((2, len(g.members) * 3, g.tokens), int) for g in groups]
    pieces = [set[int](), set[int]()]
    for (group, head, row, piece), (begin, end) in zip(plan.work, plan.ranges, strict=True):
        read[group][head, row : row + 8, begin:end] += 1
        pieces[group].add(int(piece))
    assert all((counts == 1).all() for counts in read)
    assert plan.starts.tolist() == [1040, 16, 1040, 16, 0, 1040]
    assert plan.pieces.tolist() == [len(pieces[g]) if g < 2 else 0 for g in (0, 1, 0, 1, 2, 0)]
    assert plan.first_members.tolist() == [0, 3, 5]
    assert plan.members.tolist() == [0, 2, 5, 1, 3]


@pytest.mark.parametrize(
    ("dim", "sharing", "dtype", "kv_dtype"),
    [
        (64, 3, BF16, BF16),
        *(
            pytest.param(*shape, marks=pytest.mark.slow)
            for shape in ((128, 4, BF16, FP8), (80, 1, FP16, FP16), (256, 2, BF16, BF16))
        ),
    ],
)
def test_random_steps(
    emulated: EmulatedLibrary,
    make_case: Any,
    monkeypatch: pytest.MonkeyPatch,
    dim: int,
    sharing: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
) -> None:
    found: list[SharedPrefix] = []

    def find(tables: Any, lengths: Any, block_size: int) -> list[SharedPrefix]:
        found[:] = find_shared_prefixes(tables, lengths, block_size, least_saving_tokens=64)
        return found

    monkeypatch.setattr(decode_plans, "find_shared_prefixes", find)
    sinks = torch.linspace(-2, 3, 2 * sharing)
    steps = [
        ([200, 161, 300, 5, 176], 10, AttentionForm(dim**-0.5)),  # the last has no own block
        ([340] * 3, 20, AttentionForm(dim**-0.5, sinks=sinks)),
    ]
    for seed, (lengths, shared_blocks, form) in enumerate(steps):
        case = make_case(
            lengths,
            heads=2 * sharing,
            dim=dim,
            dtype=dtype,
            kv_dtype=kv_dtype,
            form=form,
            shared_blocks=shared_blocks,
            seed=seed,
        )
        rows = DecodeRows(
            case.batch.lengths,
            np.arange(len(lengths), dtype=np.int32),
            case.batch.block_tables,
            16,
            case.batch.host_tables,
        )
        output = torch.full_like(case.queries, float("nan"))
        emulated.schedule = Schedule(seed=seed)
        step = DecodeAttention(emulated, rows, 64, torch.device("cpu"))
        step.attend(case.kv, case.queries, case.form, output)
        assert case.worst(output) < TOLERANCE[dtype]
        assert [(len(group.members), group.tokens) for group in found] == [
            (sum(length >= 160 for length in lengths), 16 * shared_blocks)
        ]
