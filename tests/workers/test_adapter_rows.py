"""What adapters add to rows, against one row after the other."""

import numpy as np
import pytest
import torch

from blockyard.workers.adapter_rows import (
    MOST_AT_ONCE,
    AdapterStack,
    add_row_by_row,
    add_to_rows,
    step_rows,
)

SLOTS, RANK, INPUTS, OUTPUTS = 4, 3, 10, 6
CPU = torch.device("cpu")

STEPS = [
    pytest.param([0, 1, 3], [1, 1, 1], id="one token each"),
    pytest.param([3, -1, 0, 3, 1], [1, 2, 1, 1, 3], id="in any order beside the base model"),
    pytest.param([-1, 2, -1], [4, 5, 1], id="one adapter in the middle"),
    pytest.param([2], [7], id="all rows of one"),
    pytest.param([1, 0, -1, 2], [400, 1, 3, 200], id="long chunks"),
    pytest.param([0, 1, 2], [200, 300, 100], id="long chunks in order"),
]


def stack() -> AdapterStack:
    draw = torch.Generator().manual_seed(0)
    down = torch.randn(SLOTS, RANK, INPUTS, generator=draw)
    up = torch.randn(SLOTS, RANK, OUTPUTS, generator=draw)
    return AdapterStack(down, up, torch.full((SLOTS,), RANK, dtype=torch.int32))


@pytest.mark.parametrize(("slots", "counts"), STEPS)
def test_rows_get_what_their_own_adapter_adds(slots: list[int], counts: list[int]) -> None:
    rows = step_rows(slots, np.array(counts, dtype=np.int32), RANK, CPU)
    assert rows is not None
    inputs, output = torch.randn(sum(counts), INPUTS), torch.randn(sum(counts), OUTPUTS)
    fast, slow = output.clone(), output.clone()
    add_to_rows(fast, inputs, stack(), rows)
    add_row_by_row(slow, inputs, stack(), rows)
    assert torch.allclose(fast, slow, atol=1e-4)
    owners = torch.tensor(np.repeat(slots, counts))
    assert torch.equal(fast[owners < 0], output[owners < 0])
    assert not torch.isclose(fast[owners >= 0], output[owners >= 0]).all(dim=1).any()


def test_both_ways_of_adding_are_taken() -> None:
    few = step_rows([0, 3], np.array([1, 1], dtype=np.int32), RANK, CPU)
    many = step_rows([0, 3], np.array([MOST_AT_ONCE, 1], dtype=np.int32), RANK, CPU)
    one = step_rows([2], np.array([1], dtype=np.int32), RANK, CPU)
    assert [rows is not None and rows.at_once for rows in (few, many, one)] == [True, False, False]


def test_a_step_of_the_base_model_alone_has_no_rows() -> None:
    assert step_rows([-1, -1], np.array([1, 9], dtype=np.int32), RANK, CPU) is None


def test_what_is_too_large_for_one_reaches_no_other() -> None:
    """Another adapter's product overflows in half precision; rows beside it are as they were."""
    matrices = stack()
    halves = AdapterStack(matrices.down.half(), matrices.up.half(), matrices.ranks)
    halves.down[1] = 60000.0
    rows = step_rows([0, 1], np.array([1, 1], dtype=np.int32), RANK, CPU)
    assert rows is not None and rows.at_once
    inputs = torch.ones(2, INPUTS, dtype=torch.float16)
    output = torch.zeros(2, OUTPUTS, dtype=torch.float16)
    add_to_rows(output, inputs, halves, rows)
    assert not output[1].isfinite().all()
    assert torch.allclose(output[0], inputs[0] @ halves.down[0].T @ halves.up[0], atol=1e-1)
