"""Adapters of a decoder's linears as the native library reads them, where their stacks lie.

Which row has which adapter comes with each step. Knows no requests. Units: columns.
"""

from collections.abc import Mapping, Sequence
from ctypes import Array

import torch

from blockyard.workers.adapter_rows import AdapterStack
from blockyard.workers.cpu.library import NativeAdapters

__all__ = ["AdapterTable", "RowAdapters", "native_adapters"]


class RowAdapters:
    """What adapters add to one packed linear, whose layers read the same rows.

    Args:
        stacks: of each of its layers; None: none adds there.
        shapes: inputs and outputs of each.
        slots: of every row, `NO_SLOT` for none.

    Attributes:
        slots: int32, of every row.
        linears: one for each layer.
    """

    def __init__(
        self,
        stacks: Sequence[AdapterStack | None],
        shapes: Sequence[tuple[int, int]],
        slots: Sequence[int],
    ) -> None:
        self._kept = stacks
        self.slots = torch.tensor(slots, dtype=torch.int32)
        self.linears = native_adapters(stacks, shapes)


class AdapterTable:
    """The stacks of all linears of a decoder.

    Args:
        names: of the linears in their model, layer by layer.
        shapes: inputs and outputs of each, on this rank.
    """

    def __init__(self, names: Sequence[str], shapes: Sequence[tuple[int, int]]) -> None:
        self._names = names
        self._shapes = shapes
        self._source: Mapping[str, AdapterStack] | None = None
        self._found: dict[str, AdapterStack] = {}
        self._linears = native_adapters([None] * len(names), shapes)

    def of(self, stacks: Mapping[str, AdapterStack]) -> "Array[NativeAdapters]":
        """All of them for the library; a bank has one mapping for life, which only grows."""
        if self._source is not stacks or len(stacks) != len(self._found):
            self._source = stacks
            self._found = dict(stacks)  # at once: another thread may be loading an adapter
            found = [self._found.get(name) for name in self._names]
            self._linears = native_adapters(found, self._shapes)
        return self._linears


def native_adapters(
    stacks: Sequence[AdapterStack | None], shapes: Sequence[tuple[int, int]]
) -> "Array[NativeAdapters]":
    """Some linears' stacks for the library; valid while the stacks live."""
    linears = (NativeAdapters * len(shapes))()
    for index, (stack, (inputs, outputs)) in enumerate(zip(stacks, shapes, strict=True)):
        if stack is None:
            linears[index] = NativeAdapters(None, None, None, inputs, outputs, 0)
            continue
        rank = stack.down.shape[1]
        if stack.down.shape[2] != inputs or stack.up.shape[2] != outputs:
            raise ValueError(
                f"adapters of {stack.down.shape[2]} inputs and {stack.up.shape[2]} outputs at a "
                f"linear of {inputs} and {outputs}"
            )
        if stack.down.dtype is not torch.float32 or stack.up.dtype is not torch.float32:
            raise TypeError(f"adapters in {stack.down.dtype}; native layers add those in float32")
        linears[index] = NativeAdapters(
            *(stack.down.data_ptr(), stack.up.data_ptr(), stack.ranks.data_ptr()),
            *(inputs, outputs, rank),
        )
    return linears
