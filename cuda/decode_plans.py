"""How the decode attention of a step is shared out, put on the device for its layers.

Units: tokens; an item is what one thread block does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from blockyard.cuda.shared_prefix import PrefixPlan, find_shared_prefixes, plan_prefixes
from blockyard.cuda.upload import Upload
from blockyard.cuda.work_list import WorkList, plan_decode

__all__ = [
    "DecodePlan",
    "DecodePlans",
    "DecodeRows",
    "HeadGroup",
    "StepPlans",
    "arrays_of",
    "partials_of",
    "prefixes_of",
    "work_of",
]


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The requests of a step that compute one token.

    Attributes:
        lengths: `[requests]`, tokens in the cache; on the host.
        tokens: `[requests]`, index of each one's token in the step; on the host.
        block_tables: int32 `[requests, widest]` on the device.
        block_size: token slots in a block.
        host_tables: `block_tables` on the host, to find what requests share; None means not to.
    """

    lengths: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    block_tables: torch.Tensor
    block_size: int
    host_tables: npt.NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class HeadGroup:
    """What layers have in common that share a plan.

    Attributes:
        kv_heads: KV heads.
        window: positions that a token sees; None means all.
        sharing: query heads that share a KV head.
        head_dim: numbers of a head.
        tile_rows: rows of a tile of the shared-prefix kernel.
    """

    kv_heads: int
    window: int | None
    sharing: int
    head_dim: int
    tile_rows: int


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """One plan on the device, for all layers of one `HeadGroup`.

    Attributes:
        grid: thread blocks of the decode kernel, at least its items.
        prefix_grid: of the shared-prefix kernel; 0: it is not launched.
        merges: whether there may be partial results to merge.
        arrays: addresses by name.
        partial_output, partial_lse: room for partial results.
    """

    grid: int
    prefix_grid: int
    merges: bool
    arrays: Mapping[str, int]
    partial_output: torch.Tensor
    partial_lse: torch.Tensor


class DecodePlans(Protocol):
    """Where decode attention gets its plans from."""

    def plan(self, heads: HeadGroup) -> DecodePlan:
        """The plan of these layers, the same at every call of one step."""
        ...


class StepPlans:
    """Plans of one step, in memory of their own.

    Args:
        rows: the step's.
        slots: thread blocks that run at once.
        device: of all tensors.
    """

    def __init__(self, rows: DecodeRows, slots: int, device: torch.device) -> None:
        self._rows = rows
        self._slots = slots
        self._device = device
        self._plans: dict[HeadGroup, tuple[DecodePlan, Upload]] = {}

    def plan(self, heads: HeadGroup) -> DecodePlan:
        """See `DecodePlans`."""
        found = self._plans.get(heads)
        if found is None:
            rows = self._rows
            prefixes = prefixes_of(
                rows.lengths, rows.host_tables, rows.block_size, heads, self._slots
            )
            work = work_of(rows.lengths, heads, self._slots, prefixes)
            arrays = arrays_of(work, prefixes) | {"tokens": rows.tokens}
            upload = Upload(self._device, **arrays)
            plan = DecodePlan(
                grid=len(work.work),
                prefix_grid=0 if prefixes is None else len(prefixes.work),
                merges=work.num_partials > 0,
                arrays={name: upload[name] for name in arrays},
                partial_output=partials_of(self._device, work.num_partials, heads),
                partial_lse=torch.empty(work.num_partials, heads.sharing, device=self._device),
            )
            found = self._plans[heads] = plan, upload
        return found[0]


def prefixes_of(
    lengths: npt.NDArray[np.int32],
    tables: npt.NDArray[np.int32] | None,
    block_size: int,
    heads: HeadGroup,
    slots: int,
) -> PrefixPlan | None:
    """How prefixes are read that requests share; None when none are worth it.

    Args:
        lengths: `[requests]`, tokens in the cache.
        tables: block ids of the first requests, or of all; None means not to look.
        block_size: token slots in a block.
        heads: of the layers.
        slots: thread blocks that run at once.
    """
    if tables is None or heads.window is not None:
        return None
    groups = find_shared_prefixes(tables, lengths[: len(tables)], block_size)
    if not groups:
        return None
    return plan_prefixes(
        groups, len(lengths), heads.kv_heads, heads.sharing, heads.tile_rows, slots
    )


def work_of(
    lengths: npt.NDArray[np.int32],
    heads: HeadGroup,
    slots: int,
    prefixes: PrefixPlan | None,
    most_items: int | None = None,
) -> WorkList:
    """What each thread block does; `most_items` as in `plan_decode`."""
    starts = reserved = None
    if heads.window is not None:
        starts = np.maximum(lengths - heads.window, 0)
    elif prefixes is not None:
        starts, reserved = prefixes.starts, prefixes.pieces
    return plan_decode(lengths, heads.kv_heads, slots, starts, reserved, most_items)


def arrays_of(work: WorkList, prefixes: PrefixPlan | None) -> dict[str, npt.NDArray[np.int32]]:
    """What the kernels read of a plan, by name."""
    arrays = {
        "work": work.work,
        "partials": work.partials,
        "first": work.first,
        "count": work.count,
        "num_work": np.array([len(work.work)], dtype=np.int32),
    }
    if prefixes is not None:
        arrays |= {
            "prefix_work": prefixes.work,
            "ranges": prefixes.ranges,
            "first_members": prefixes.first_members,
            "members": prefixes.members,
            "num_prefix_work": np.array([len(prefixes.work)], dtype=np.int32),
        }
    return arrays


def partials_of(device: torch.device, count: int, heads: HeadGroup) -> torch.Tensor:
    """float32 `[partials, sharing, head_dim]`."""
    return torch.empty(count, heads.sharing, heads.head_dim, device=device)
