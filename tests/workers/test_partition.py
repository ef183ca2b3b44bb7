"""How heads, columns and rows are divided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockyard.workers.partition import (
    PartitionError,
    share_columns,
    share_heads,
    share_rows,
)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "kv", "query"),
    [
        (9, 3, 2, [2, 1], [6, 3]),
        (8, 8, 3, [3, 3, 2], [3, 3, 2]),
        (4, 1, 2, [1, 1], [2, 2]),
        (10, 5, 4, [2, 1, 1, 1], [4, 2, 2, 2]),
        (9, 3, 4, [1, 1, 1, 1], [2, 1, 3, 3]),
    ],
)
def test_uneven_heads(
    heads: int, kv_heads: int, ranks: int, kv: list[int], query: list[int]
) -> None:
    shares = share_heads(heads, kv_heads, ranks)
    assert [len(share.kv) for share in shares] == kv
    assert [len(share.query) for share in shares] == query


@given(sharing=st.integers(1, 8), kv_heads=st.integers(1, 12), data=st.data())
def test_every_query_head_is_on_one_rank_beside_its_kv_head(
    sharing: int, kv_heads: int, data: st.DataObject
) -> None:
    heads = sharing * kv_heads
    ranks = data.draw(st.integers(1, heads))
    shares = share_heads(heads, kv_heads, ranks)
    held = [head for share in shares for head in range(share.query.start, share.query.stop)]
    assert held == list(range(heads))
    for share in shares:
        own = len(share.query) // len(share.kv)
        for head in range(len(share.query)):
            whole = (share.query.start + head) // sharing
            assert share.kv.start + head // own == whole  # as attention pairs them on the rank
    first = [share.kv.start for share in shares if share.first_holder]
    assert len(first) == min(ranks, kv_heads) and len(set(first)) == len(first)
    counts = [len(share.kv) for share in shares]
    assert max(counts) - min(counts) <= 1


def test_what_cannot_be_divided_is_refused_with_the_numbers() -> None:
    with pytest.raises(PartitionError, match="4 query heads cannot be divided over 5 ranks"):
        share_heads(4, 2, 5)
    with pytest.raises(PartitionError, match="5 query heads do not share 2 KV heads"):
        share_heads(5, 2, 1)


@given(
    columns=st.integers(1, 4096),
    loads=st.lists(st.floats(0, 5000), min_size=1, max_size=8),
)
def test_columns_even_out_what_ranks_carry(columns: int, loads: list[float]) -> None:
    spans = share_columns(columns, loads)
    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    assert spans[-1].stop == columns
    # Nobody who got columns ends much above somebody else: one granule and rounding.
    totals = [load + len(span) for load, span in zip(loads, spans, strict=True)]
    filled = [total for total, span in zip(totals, spans, strict=True) if len(span)]
    assert not filled or max(filled) <= min(totals) + 2 * 32 + 1


def test_columns_of_smollm2_balance_its_heads() -> None:
    # Per KV head 8 x 64 rows of 576 weights, per column 3 of them.
    spans = share_columns(1536, [2 * 512 / 3, 512 / 3])
    assert [len(span) for span in spans] == [672, 864]


@given(rows=st.integers(1, 1000), ranks=st.integers(1, 16))
def test_rows_are_cut_at_the_end_alone(rows: int, ranks: int) -> None:
    spans = share_rows(rows, ranks)
    assert [row for span in spans for row in range(span.start, span.stop)] == list(range(rows))
    assert all(span.start == min(rank * len(spans[0]), rows) for rank, span in enumerate(spans))
