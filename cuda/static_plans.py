"""Plans of decode attention that each step writes over the last one's: for captured graphs.

Units: tokens, bytes; an item is what one thread block does.
"""

import numpy as np
import numpy.typing as npt
import torch

from blockyard.cuda.decode_plans import (
    DecodePlan,
    HeadGroup,
    arrays_of,
    partials_of,
    prefixes_of,
    work_of,
)
from blockyard.cuda.shared_prefix import PrefixPlan
from blockyard.cuda.work_list import WorkList

__all__ = ["StaticPlans"]

_EXTRA_ITEMS = 2
"""Items for each thread block that runs at once, beside one for each request and KV head: thread
blocks of a graph beyond the items of a step begin and end at once, which is not quite free."""

_PREFIX_PARTIALS = 4
"""Pieces of a shared prefix for each request, on the average, that a graph has room for."""


class StaticPlans:
    """Plans in memory that stays where it is, written over by each step.

    The first step that asks for layers of some kind makes room for them; every later `fill` plans
    for all kinds that were asked for. Token `i` of a step is that of request `i`.

    Args:
        most_rows: requests of the largest step.
        block_size: token slots in a block.
        slots: thread blocks that run at once.
        device: of all tensors.
    """

    def __init__(self, most_rows: int, block_size: int, slots: int, device: torch.device) -> None:
        self._most_rows = most_rows
        self._block_size = block_size
        self._slots = slots
        self._device = device
        self._room: dict[HeadGroup, _Room] = {}
        self._lengths = np.zeros(most_rows, dtype=np.int32)
        self._tables: npt.NDArray[np.int32] | None = None
        self._shared = False

    def fill(
        self, lengths: npt.NDArray[np.int32], host_tables: npt.NDArray[np.int32] | None
    ) -> bool:
        """Plan for other requests; whether some of them share a prefix that is read once.

        Args:
            lengths: `[requests]`, tokens in the cache; 0 for a row that only fills up the step.
            host_tables: block ids of the first requests, `[at most requests, widest]`.
        """
        self._lengths, self._tables = lengths, host_tables
        self._shared = False
        for heads, room in self._room.items():
            self._write(heads, room)
        return self._shared

    def plan(self, heads: HeadGroup) -> DecodePlan:
        """See `DecodePlans`."""
        room = self._room.get(heads)
        if room is None:
            room = self._room[heads] = _Room(heads, self._most_rows, self._slots, self._device)
            self._write(heads, room)
        rows = len(self._lengths)
        return DecodePlan(
            grid=rows * heads.kv_heads + _EXTRA_ITEMS * self._slots,
            prefix_grid=room.most_prefix_items if self._shared and heads.window is None else 0,
            merges=True,
            arrays=room.addresses,
            partial_output=room.partial_output,
            partial_lse=room.partial_lse,
        )

    def _write(self, heads: HeadGroup, room: "_Room") -> None:
        prefixes = prefixes_of(self._lengths, self._tables, self._block_size, heads, self._slots)
        most = len(self._lengths) * heads.kv_heads + _EXTRA_ITEMS * self._slots
        work = work_of(self._lengths, heads, self._slots, prefixes, most)
        if prefixes is not None and not room.holds(work, prefixes):
            prefixes = None  # read again by each: slower, and right
            work = work_of(self._lengths, heads, self._slots, None, most)
        self._shared |= prefixes is not None
        room.write(arrays_of(work, prefixes))


class _Room:
    """The memory of one kind of layers."""

    def __init__(self, heads: HeadGroup, most_rows: int, slots: int, device: torch.device) -> None:
        items = most_rows * heads.kv_heads + _EXTRA_ITEMS * slots
        pairs = most_rows * heads.kv_heads
        self.most_prefix_items = _EXTRA_ITEMS * slots
        self._most_partials = items + _PREFIX_PARTIALS * pairs
        sizes = {
            "work": 4 * items,
            "partials": items,
            "first": pairs,
            "count": pairs,
            "num_work": 1,
            "prefix_work": 4 * self.most_prefix_items,
            "ranges": 2 * self.most_prefix_items,
            "first_members": most_rows + 1,
            "members": most_rows,
            "num_prefix_work": 1,
            "tokens": most_rows,
        }
        begins = np.cumsum([0, *(-(-size // 4) * 4 for size in sizes.values())])
        self._begins = dict(zip(sizes, begins.tolist(), strict=False))
        self._memory = torch.zeros(int(begins[-1]), dtype=torch.int32, device=device)
        self._tokens = np.arange(most_rows, dtype=np.int32)
        base = self._memory.data_ptr()
        self.addresses = {name: base + 4 * begin for name, begin in self._begins.items()}
        self.partial_output = partials_of(device, self._most_partials, heads)
        self.partial_lse = torch.empty(self._most_partials, heads.sharing, device=device)

    def holds(self, work: WorkList, prefixes: PrefixPlan) -> bool:
        """Whether there is room for a plan with shared prefixes; without, there always is."""
        return (
            work.num_partials <= self._most_partials
            and len(prefixes.work) <= self.most_prefix_items
        )

    def write(self, arrays: dict[str, npt.NDArray[np.int32]]) -> None:
        """Queue a copy of all arrays, each at its own place."""
        # A new piece of page-locked memory each time: the copy from the last one may not be over.
        pinned = self._memory.device.type == "cuda"
        host = torch.zeros(len(self._memory), dtype=torch.int32, pin_memory=pinned)
        view = host.numpy()
        for name, array in (arrays | {"tokens": self._tokens}).items():
            begin = self._begins[name]
            view[begin : begin + array.size] = array.reshape(-1)
        self._memory.copy_(host, non_blocking=True)
