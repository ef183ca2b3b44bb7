"""How a model is divided over the ranks of a group: heads, columns and vocabulary rows.

Sums only: no tensors, no model. Heads are divided by KV head, because attention reads keys and
values of one KV head for all query heads that share it. Units: heads, columns, rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["HeadShare", "PartitionError", "Span", "share_columns", "share_heads", "share_rows"]


class PartitionError(Exception):
    """The model cannot be divided over so many ranks; the message has the numbers."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive indices `start .. stop - 1`."""

    start: int
    stop: int

    def __len__(self) -> int:
        """How many."""
        return self.stop - self.start

    def scaled(self, width: int) -> "Span":
        """The same in units that are `width` times smaller."""
        return Span(self.start * width, self.stop * width)


@dataclass(frozen=True, slots=True)
class HeadShare:
    """One rank's heads.

    Attributes:
        query: its query heads.
        kv: its KV heads, read by exactly these query heads, the same number for each.
        first_holder: no rank before this one holds the same KV head.
    """

    query: Span
    kv: Span
    first_holder: bool = True


def share_heads(heads: int, kv_heads: int, ranks: int) -> tuple[HeadShare, ...]:
    """Divide heads over ranks as evenly as KV heads allow, the first ranks taking what is over.

    With more ranks than KV heads, ranks share a KV head and divide its query heads.

    Raises:
        PartitionError: there are more ranks than query heads, or heads do not share evenly.
    """
    if heads % kv_heads:
        raise PartitionError(f"{heads} query heads do not share {kv_heads} KV heads evenly")
    if ranks > heads:
        raise PartitionError(
            f"{heads} query heads cannot be divided over {ranks} ranks; use at most {heads}"
        )
    sharing = heads // kv_heads
    if ranks <= kv_heads:
        return tuple(
            HeadShare(kv.scaled(sharing), kv) for kv in _even(kv_heads, [1.0] * ranks, ranks)
        )
    shares: list[HeadShare] = []
    for head, holders in enumerate(_even(ranks, [1.0] * kv_heads, kv_heads)):
        for number, query in enumerate(_even(sharing, [1.0] * len(holders), len(holders))):
            base = head * sharing
            span = Span(base + query.start, base + query.stop)
            shares.append(HeadShare(span, Span(head, head + 1), first_holder=number == 0))
    return tuple(shares)


def share_columns(columns: int, loads: Sequence[float]) -> tuple[Span, ...]:
    """Divide the columns of an MLP so that ranks come out even with what they carry already.

    Args:
        columns: how many there are.
        loads: what each rank carries already, in columns' worth of weights.
    """
    ordered = sorted(loads)
    level = 0.0  # every rank is filled up to here, as water finds its level
    for count in range(1, len(ordered) + 1):
        level = (columns + sum(ordered[:count])) / count
        if count == len(ordered) or level <= ordered[count]:
            break
    wanted = [max(0.0, level - load) for load in loads]
    granule = _granule(columns, len(loads))
    spans = _even(columns // granule, [share / granule for share in wanted], len(loads))
    return tuple(span.scaled(granule) for span in spans)


def share_rows(rows: int, ranks: int) -> tuple[Span, ...]:
    """Divide the vocabulary into pieces as long as the first one, the last ones cut or empty.

    Equal pieces are gathered without telling their sizes; who is short fills up with zeros.
    """
    padded = -(-rows // ranks)
    return tuple(
        Span(min(rank * padded, rows), min((rank + 1) * padded, rows)) for rank in range(ranks)
    )


def _granule(columns: int, ranks: int) -> int:
    """Columns that stay together: vector units like round numbers, small models need small ones.

    Multiplications of experts, grouped in one call, insist on 16 bytes: 8 numbers of any dtype.
    """
    for granule, least in ((32, 4), (16, 4), (8, 1)):
        if columns % granule == 0 and columns >= least * granule * ranks:
            return granule
    return 1


def _even(total: int, weights: Sequence[float], parts: int) -> list[Span]:
    """Consecutive spans with lengths in proportion to weights, what rounding leaves over to the
    largest remainders, the earlier of equals first."""
    scale = total / sum(weights)
    exact = [weight * scale for weight in weights]
    lengths = [math.floor(share) for share in exact]
    order = sorted(range(parts), key=lambda part: (lengths[part] - exact[part], part))
    for part in order[: total - sum(lengths)]:
        lengths[part] += 1
    spans, start = [], 0
    for length in lengths:
        spans.append(Span(start, start + length))
        start += length
    return spans
