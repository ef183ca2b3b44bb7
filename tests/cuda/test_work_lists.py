"""What is shared out to thread blocks: every position once, pieces even, partial results apart."""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockyard.cuda.tile_plan import plan_tiles
from blockyard.cuda.work_list import TILE_TOKENS, WorkList, plan_decode

Array = npt.NDArray[Any]
LENGTHS = st.lists(st.integers(0, 3000), min_size=1, max_size=12)


def check_decode(
    plan: WorkList, begins: np.ndarray, ends: np.ndarray, reserved: np.ndarray
) -> None:
    """Restates what `WorkList` promises."""
    heads = len(plan.first) // len(ends)
    written: set[int] = set()
    for at, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        for head in range(heads):
            mine = np.flatnonzero((plan.work[:, 0] == at) & (plan.work[:, 1] == head))
            ranges = sorted((int(plan.work[i, 2]), int(plan.work[i, 3])) for i in mine)
            assert ranges[0][0] == begin
            assert ranges[-1][1] == end
            assert all(a[1] == b[0] and a[1] % TILE_TOKENS == 0 for a, b in pairwise(ranges))
            first, count = plan.first[at * heads + head], plan.count[at * heads + head]
            partials = sorted(int(plan.partials[i]) for i in mine)
            if count == 0:
                assert partials == [-1]
                continue
            assert count == len(mine) + reserved[at] > 1
            assert partials == list(range(first + reserved[at], first + count))
            places = set(range(first, first + count))
            assert not places & written
            written |= places
    assert written == set(range(plan.num_partials))
    spans = plan.work[:, 3] - plan.work[:, 2]
    assert (np.diff(spans) <= 0).all(), "longest first"


@given(LENGTHS, st.integers(1, 4), st.integers(1, 300), st.integers(0, 500), st.booleans())
def test_decode_reads_every_position_once(
    lengths: list[int], kv_heads: int, slots: int, window: int, shared: bool
) -> None:
    ends = np.array(lengths, dtype=np.int32)
    begins = np.maximum(ends - window, 0) if window else np.zeros_like(ends)
    reserved = np.array([shared and n % 3 for n in lengths])
    plan = plan_decode(ends, kv_heads, slots, begins, reserved)
    check_decode(plan, begins, ends, reserved)


@pytest.mark.parametrize(
    ("lengths", "kv_heads", "most"),
    [
        ([32768], 8, 1.1),  # one request fills the GPU
        ([4096] * 64, 8, 1.15),  # many equal ones: no round that is mostly empty
        ([200] * 256, 8, 1.15),
        ([100_000, *[500] * 40], 8, 1.15),
        ([4096] * 37, 8, 1.15),
    ],
)
def test_decode_keeps_all_slots_busy(lengths: list[int], kv_heads: int, most: float) -> None:
    slots, overhead = 264, 48
    plan = plan_decode(np.array(lengths), kv_heads, slots)
    busy_until = np.zeros(slots)
    for begin, end in plan.work[:, 2:]:  # as a GPU hands out thread blocks
        busy_until[busy_until.argmin()] += end - begin + overhead
    even = (sum(lengths) * kv_heads + overhead * len(plan.work)) / slots
    assert busy_until.max() <= most * even
    # Partial results are written and read again: they must stay small beside keys and values.
    assert plan.num_partials * 2 * 2 < 0.1 * sum(lengths) * kv_heads


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 900)), min_size=1, max_size=6),
    *(st.sampled_from([1, 3, 8]), st.integers(1, 200), st.sampled_from([None, 1, 100])),
)
def test_prefill_gives_every_row_all_it_sees(
    requests: list[tuple[int, int]], sharing: int, slots: int, window: int | None
) -> None:
    counts = np.array([count for count, _ in requests], dtype=np.int32)
    lengths = counts + np.array([start for _, start in requests], dtype=np.int32)
    plan = plan_tiles(counts, lengths, window, 2, sharing, 64, slots)
    written: list[int] = []
    pieces: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
    for (request, head, row, partial), (begin, end) in zip(plan.work, plan.ranges, strict=True):
        assert begin < end
        pieces.setdefault((request, head, row), []).append((int(begin), int(end), int(partial)))
    cut = {
        tuple(tile[:3]): (tile[3], n)
        for tile, n in zip(plan.tiles, plan.num_partials_of, strict=True)
    }
    for request, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        for head in range(2):
            for row in range(0, count * sharing, 64):
                found = sorted(pieces.pop((request, head, row)))
                first_position = length - count + row // sharing
                last_row = min(row + 64, count * sharing) - 1
                begin = 0 if window is None else max(0, first_position + 1 - window)
                assert found[0][0] == begin
                assert found[-1][1] == length - count + last_row // sharing + 1
                assert all(a[1] == b[0] and a[1] % 64 == 0 for a, b in pairwise(found))
                partials = [partial for _, _, partial in found]
                if len(found) == 1:
                    assert partials == [-1]
                else:
                    first, number = cut.pop((request, head, row))
                    assert partials == list(range(first, first + number))
                    written += partials
    assert not pieces
    assert not cut
    assert sorted(written) == list(range(plan.num_partials))
