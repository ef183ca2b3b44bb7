"""Whole blocks copied, gathered and spread: in the emulation, byte for byte."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from blockyard.cuda import block_copy
from blockyard.cuda.block_copy import BlockMover, Run, copy_blocks, runs_of
from blockyard.cuda.emulator.build import EmulatedLibrary
from blockyard.cuda.launch import KernelLibrary

SHAPES = [(8,), (3, 2, 1, 16, 64), (2, 2, 3, 16, 80), (4104,)]
"""Blocks of 16 bytes, of some thread blocks' shares, and of one share and a bit."""


def pools(blocks: int, shape: tuple[int, ...]) -> torch.Tensor:
    count = blocks * torch.Size(shape).numel()
    return torch.arange(count).remainder(30011).to(torch.int16).view(blocks, *shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_are_copied_and_no_others(emulated: EmulatedLibrary, shape: tuple[int, ...]) -> None:
    pool = pools(9, shape)
    expected = pool.clone()
    moves = [(0, 8), (0, 3), (5, 1), (7, 6)]
    for source, destination in moves:
        expected[destination] = pool[source]
    copy_blocks(emulated, pool, pool, moves)
    assert torch.equal(pool, expected)


def test_no_moves_copy_nothing(emulated: EmulatedLibrary) -> None:
    pool = pools(2, (8,))
    copy_blocks(emulated, pool, pool, [])
    assert torch.equal(pool, pools(2, (8,)))


def test_blocks_of_other_sizes_are_refused(emulated: EmulatedLibrary) -> None:
    with pytest.raises(ValueError, match="blocks of 16 and of 32 bytes"):
        copy_blocks(emulated, pools(2, (8,)), pools(2, (16,)), [(0, 1)])
    with pytest.raises(ValueError, match="a multiple of 16"):
        copy_blocks(emulated, pools(2, (4,)), pools(2, (4,)), [(0, 1)])


def test_a_planted_copy_too_far_is_caught(planted: Callable[[int], KernelLibrary]) -> None:
    pool = pools(4, (8,))
    copy_blocks(planted(1), pool, pool, [(0, 2)])
    assert not torch.equal(pool[3], pools(4, (8,))[3])


def test_runs_follow_host_memory() -> None:
    pairs = [(9, 4), (7, 2), (8, 3), (1, 7), (0, 8), (30, 20)]
    found = list(runs_of(pairs, 64))
    assert found == [Run(2, (7, 8, 9)), Run(7, (1, 0)), Run(20, (30,))]
    assert [run.adjacent for run in found] == [True, False, True]
    assert [len(run.device) for run in runs_of(pairs, 2)] == [2, 1, 2, 1]
    assert not Run(0, (1, 3, 2, 4)).adjacent
    assert list(runs_of([], 4)) == []


@pytest.mark.parametrize("direct", [False, True], ids=["gathered", "directly"])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_swapped_out_comes_back_elsewhere(
    emulated: EmulatedLibrary, monkeypatch: pytest.MonkeyPatch, direct: bool, seed: int
) -> None:
    if direct:
        monkeypatch.setattr(block_copy, "_DIRECT_BYTES", 1)
    chance = random.Random(seed)
    pool, host = pools(24, (2, 2, 8)), pools(24, (2, 2, 8)) * 0 - 1
    before = pool.clone()
    mover = BlockMover(emulated, pool, host, staging_blocks=3)
    blocks = chance.sample(range(24), 11)
    places = sorted(chance.sample(range(24), 11)) if seed % 2 else list(range(4, 15))
    mover.swap_out(list(zip(blocks, places, strict=True)))
    assert torch.equal(pool, before)
    assert torch.equal(host[places], before[blocks])
    untouched = [block for block in range(24) if block not in places]
    assert bool((host[untouched] == -1).all())
    targets = chance.sample(range(24), 11)
    mover.swap_in(list(zip(places, targets, strict=True)))
    expected = before.clone()
    expected[targets] = before[blocks]
    assert torch.equal(pool, expected)


def test_scattered_blocks_take_one_copy_to_the_host(
    emulated: EmulatedLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    copy = torch.Tensor.copy_

    def counted(self: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        copied.append(len(self))
        return copy(self, *given, **named)

    pool, host = pools(16, (16,)), pools(16, (16,))
    mover = BlockMover(emulated, pool, host)
    monkeypatch.setattr(torch.Tensor, "copy_", counted)
    mover.swap_out([(9, 0), (2, 1), (12, 2), (5, 3)])
    assert copied == [4]
    mover.swap_in([(0, 1), (1, 2), (2, 3), (8, 4)])
    assert copied == [4, 3, 1]
