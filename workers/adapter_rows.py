"""Which rows of a step belong to which adapter, and what adapters add to a linear's output.

Adapters lie in *slots*: the matrices of all slots of one linear are one stack, filled up with zeros
to one rank. Rows are sorted by slot. Few rows are multiplied by all slots at once and what is not
theirs is left out; many are multiplied slot by slot. Units: rows are tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["NO_SLOT", "AdapterStack", "StepRows", "add_row_by_row", "add_to_rows", "step_rows"]

NO_SLOT = -1
"""Of a row that is the base model's own."""

MOST_AT_ONCE = 1024
"""Rows times slots up to which sums with all slots cost less than going from slot to slot."""


@dataclass(frozen=True, slots=True)
class AdapterStack:
    """The matrices of one linear.

    Attributes:
        down: `[slots, rank, inputs]`.
        up: `[slots, rank, outputs]`.
        ranks: int32 `[slots]` on the host, how much of the rank each slot uses.
    """

    down: torch.Tensor
    up: torch.Tensor
    ranks: torch.Tensor


@dataclass(frozen=True)
class StepRows:
    """The rows of one step that have an adapter.

    Attributes:
        places: int64 `[rows]` on the device, where each is in the step, sorted by slot.
        segments: slot, first and end of its rows among `places`, in order of slots.
        rank: of all slots.
        contiguous: first place, when the places are one run in order; None when not.
        slots_of_tokens: int32, of every token of the step, `NO_SLOT` for the base model.
    """

    places: torch.Tensor
    segments: tuple[tuple[int, int, int], ...]
    rank: int
    contiguous: int | None
    slots_of_tokens: npt.NDArray[np.int32]

    @property
    def slots(self) -> tuple[int, int]:
        """The first slot that has rows, and the end of those that may have some."""
        return self.segments[0][0], self.segments[-1][0] + 1

    @cached_property
    def at_once(self) -> bool:
        """Whether the rows are multiplied by all slots together."""
        first, end = self.slots
        return len(self.segments) > 1 and len(self.places) * (end - first) <= MOST_AT_ONCE

    @cached_property
    def foreign(self) -> torch.Tensor:
        """Bool `[rows, slots * rank]`: of the products with all slots, those of other adapters."""
        first, end = self.slots
        foreign = torch.ones(
            len(self.places), end - first, self.rank, dtype=torch.bool, device=self.places.device
        )
        for slot, begin, stop in self.segments:
            foreign[begin:stop, slot - first] = False
        return foreign.flatten(1)


def step_rows(
    slots: Sequence[int], counts: npt.NDArray[np.int32], rank: int, device: torch.device
) -> StepRows | None:
    """Sort a step's rows; None when no request in it has an adapter.

    Args:
        slots: of each request, `NO_SLOT` for the base model.
        counts: tokens of each request, which follow one another.
        rank: of all slots.
        device: where the rows go.
    """
    owners = np.repeat(np.array(slots, dtype=np.int64), counts)
    places = np.flatnonzero(owners != NO_SLOT)
    if not len(places):
        return None
    order = np.argsort(owners[places], kind="stable")
    places = places[order]
    found, begins = np.unique(owners[places], return_index=True)
    ends = [*begins[1:].tolist(), len(places)]
    in_order = bool(np.array_equal(places, np.arange(places[0], places[0] + len(places))))
    return StepRows(
        places=torch.from_numpy(places).to(device, non_blocking=True),
        segments=tuple(zip(found.tolist(), begins.tolist(), ends, strict=True)),
        rank=rank,
        contiguous=int(places[0]) if in_order else None,
        slots_of_tokens=owners.astype(np.int32),
    )


def add_to_rows(
    output: torch.Tensor, inputs: torch.Tensor, stack: AdapterStack, rows: StepRows
) -> None:
    """Add to each row of a linear's `output` what its adapter makes of the row's `inputs`.

    Args:
        output: `[tokens, outputs]`, changed in place.
        inputs: `[tokens, inputs]`.
        stack: of this linear.
        rows: of the step.
    """
    start, count = rows.contiguous, len(rows.places)
    own = inputs[rows.places] if start is None else inputs[start : start + count]
    if rows.at_once:
        first, end = rows.slots
        narrow = own @ stack.down[first:end].flatten(0, 1).T  # [rows, slots * rank]
        # Not multiplied by zero: what another adapter makes too large must not reach this row.
        added = narrow.masked_fill(rows.foreign, 0) @ stack.up[first:end].flatten(0, 1)
    else:
        added = output.new_empty(count, output.shape[1])
        for slot, begin, stop in rows.segments:
            torch.mm(own[begin:stop] @ stack.down[slot].T, stack.up[slot], out=added[begin:stop])
    if start is None:
        output.index_add_(0, rows.places, added)
    else:
        output[start : start + count] += added


def add_row_by_row(
    output: torch.Tensor, inputs: torch.Tensor, stack: AdapterStack, rows: StepRows
) -> None:
    """The slow twin of `add_to_rows`: one row after the other."""
    for slot, begin, stop in rows.segments:
        for place in rows.places[begin:stop].tolist():
            output[place] += (inputs[place] @ stack.down[slot].T) @ stack.up[slot]
