"""Decode steps in memory that stays where it is, beside steps that are planned anew."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from blockyard.cuda import decode_plans
from blockyard.cuda.backend import AttentionForm, StaticDecodeBackend
from blockyard.cuda.emulator.build import EmulatedLibrary
from blockyard.cuda.kernel_backend import KernelBackend
from blockyard.cuda.launch import Kernel, KernelLibrary
from blockyard.cuda.shared_prefix import find_shared_prefixes
from blockyard.cuda.sources import Build
from blockyard.cuda.work_list import plan_decode

CPU = torch.device("cpu")
SLOTS = 4


class Noted:
    """A kernel, and what was launched of it."""

    def __init__(self, kernel: Kernel, name: str, made: list[tuple[str, int]]) -> None:
        self.arguments = kernel.arguments
        self._kernel = kernel
        self._name = name
        self._made = made

    def __call__(self, grid: int, block: int, arguments: Any, shared_bytes: int = 0) -> None:
        self._made.append((self._name, grid))
        self._kernel(grid, block, arguments, shared_bytes)


class Launches:
    """The kernels, and what was launched: names and sizes of grids."""

    def __init__(self, library: KernelLibrary) -> None:
        self._library = library
        self.made: list[tuple[str, int]] = []

    def kernel(self, build: Build, name: str) -> Kernel:
        return Noted(self._library.kernel(build, name), name, self.made)


@pytest.fixture
def launches(emulated: EmulatedLibrary) -> Launches:
    return Launches(emulated)


def test_each_step_is_what_a_step_of_its_own_is(
    emulated: EmulatedLibrary,
    launches: Launches,
    make_case: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of other requests, lengths, block tables and shared prefixes in the same memory."""

    def find(tables: Any, lengths: Any, block_size: int) -> Any:
        return find_shared_prefixes(tables, lengths, block_size, least_saving_tokens=64)

    monkeypatch.setattr(decode_plans, "find_shared_prefixes", find)
    backend = KernelBackend(launches, CPU, SLOTS)
    assert isinstance(backend, StaticDecodeBackend)
    static = backend.static_decode(most_rows=6, widest=24, block_size=16, null_slot=0)
    eager = KernelBackend(emulated, CPU, SLOTS)
    seen: dict[tuple[int, object], list[tuple[str, int]]] = {}
    for seed, (lengths, rows, shared) in enumerate(
        [
            ([40, 1, 333], 4, 0),
            ([160, 2], 2, 0),
            ([5, 33, 64, 9], 4, 0),
            ([170, 165, 200], 4, 10),
            ([70, 90, 65, 64], 4, 4),
            ([9, 300, 2, 81, 44, 18], 6, 0),
            ([12], 4, 0),
        ]
    ):
        case = make_case(lengths, shared_blocks=shared, seed=seed)
        queries = torch.cat((case.queries, torch.randn(rows - len(lengths), 4, 64).bfloat16()))
        kind = static.fill(case.batch, rows)
        if not seed:  # the first step shows what kinds of layers there are
            static.step(rows).attend(case.kv, queries, case.form)
            kind = static.fill(case.batch, rows)
        launches.made.clear()
        output = static.step(rows).attend(case.kv, queries, case.form)
        expected = eager.begin(case.batch).attend(case.kv, case.queries, case.form)
        assert torch.equal(output[: len(lengths)], expected)
        assert not output[len(lengths) :].any()
        # What is launched, a replayed graph cannot change.
        assert seen.setdefault((rows, kind), launches.made[:]) == launches.made
    assert len(seen) == 4
    assert {("attend_shared_prefix" in dict(made)) for made in seen.values()} == {True, False}


def test_windows_have_a_plan_of_their_own(emulated: EmulatedLibrary, make_case: Any) -> None:
    backend = KernelBackend(emulated, CPU, SLOTS)
    static = backend.static_decode(most_rows=4, widest=24, block_size=16, null_slot=0)
    forms = [AttentionForm(0.125), AttentionForm(0.125, window=20)]
    for seed, lengths in enumerate(([100, 7, 60], [31, 222])):
        case = make_case(lengths, seed=seed)
        static.fill(case.batch, 4)
        step, own = static.step(4), backend.begin(case.batch)
        queries = torch.cat((case.queries, case.queries[: 4 - len(lengths)]))
        for form in forms:
            output = step.attend(case.kv, queries, form)[: len(lengths)]
            assert torch.equal(output, own.attend(case.kv, case.queries, form))
            assert replace(case, form=form).worst(output) < 1.6e-2


def test_rows_that_fill_up_write_to_the_null_slot(
    emulated: EmulatedLibrary, make_case: Any
) -> None:
    case = make_case([20, 17])
    backend = KernelBackend(emulated, CPU, SLOTS)
    null_slot = 16 * (len(case.kv.blocks) - 1) + 5
    static = backend.static_decode(most_rows=8, widest=4, block_size=16, null_slot=null_slot)
    full = make_case([20, 17, 30, 9, 40, 11, 3, 60])
    static.fill(full.batch, 8)  # no slot of an earlier step is written to again
    static.fill(case.batch, 4)
    before = case.kv.blocks.clone().view(torch.uint8)
    keys, values = torch.randn(2, 4, 2, 64).bfloat16()
    static.step(4).write(case.kv, keys, values)
    changed = (case.kv.blocks.view(torch.uint8) != before).flatten(2).any(dim=(1, 2))
    own = (case.batch.slots // 16).tolist()
    assert sorted(changed.nonzero().flatten().tolist()) == sorted([*own, null_slot // 16])
    assert torch.equal(case.kv.blocks[own, 0, :, case.batch.slots % 16], keys[:2])


@pytest.mark.parametrize("slots", [1, 7, 264])
def test_a_bound_on_items_is_kept(slots: int) -> None:
    chance = np.random.default_rng(slots)
    for _ in range(40):
        lengths = chance.integers(0, 5000, chance.integers(1, 20)).astype(np.int32)
        kv_heads = int(chance.integers(1, 9))
        most = len(lengths) * kv_heads + slots
        work = plan_decode(lengths, kv_heads, slots, most_items=most).work
        assert len(work) <= most
        read = np.zeros((len(lengths), kv_heads), dtype=np.int64)
        np.add.at(read, (work[:, 0], work[:, 1]), work[:, 3] - work[:, 2])
        assert (read == lengths[:, None]).all()
