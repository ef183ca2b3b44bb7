"""Weights of linear layers as the native library keeps them: packed once, in one of four storages.

What is stored in fewer bits comes back slightly changed; `restore` tells how. Units: bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from blockyard.workers.cpu.library import NativeMatrix, NativePool
from blockyard.workers.cpu.low_rank import RowAdapters
from blockyard.workers.large_memory import large_memory

__all__ = ["PANEL_COLUMNS", "PackedLinear", "WeightStorage"]

PANEL_COLUMNS = 16
_INPUT_GROUP = 32


class WeightStorage(StrEnum):
    """How weights lie in memory; sums are taken in float32 with all of them.

    `int8` and `int4` are scaled by group of 32 inputs, the latter from its least value: 8.5 and 5
    bits a weight. A decoder in `int4` keeps its head in `int8`.
    """

    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def number(self) -> int:
        """As `Storage` of `native/weights.hpp` counts them."""
        return list(WeightStorage).index(self)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of the weights: their shape, their first panel and the distance of panels."""

    columns: int
    first: int
    step: int


class PackedLinear:
    """Linear layers that read the same rows, as one.

    Args:
        pool: packs, and multiplies.
        weights: float32 `[columns, inputs]` of each layer, one after the other in the outputs;
            all but the last have whole panels of 16 columns.
        storage: of the packed weights.
        bias: float32 `[all columns]`, or None.
        alternating: two layers whose panels take turns, as gate and up do.

    Attributes:
        storage: of the packed weights.
        columns, inputs: of all layers together; `columns` with what pads their panels.
        nbytes: of the packed weights.
    """

    def __init__(
        self,
        pool: NativePool,
        weights: Sequence[torch.Tensor],
        storage: WeightStorage,
        bias: torch.Tensor | None = None,
        alternating: bool = False,
    ) -> None:
        panels = [-(-len(weight) // PANEL_COLUMNS) for weight in weights]
        if not alternating and any(len(weight) % PANEL_COLUMNS for weight in weights[:-1]):
            raise ValueError(f"layers of {[len(w) for w in weights]} columns do not fill panels")
        self.storage = storage
        self.columns = sum(panels) * PANEL_COLUMNS if len(weights) > 1 else len(weights[0])
        self.inputs = weights[0].shape[1]
        self._pool = pool
        self.nbytes: int = pool.call.by_packed_bytes(self.columns, self.inputs, storage.number)
        self._data = large_memory(self.nbytes)
        self._bias = None
        if bias is not None:
            self._bias = torch.zeros(sum(panels) * PANEL_COLUMNS)
            self._bias[: len(bias)] = bias
        self._parts: list[_Part] = []
        for index, weight in enumerate(weights):
            first = index if alternating else sum(panels[:index])
            part = _Part(len(weight), first, len(weights) if alternating else 1)
            self._parts.append(part)
            rows = weight.float().contiguous()
            pool.call.by_pack(
                pool.address,
                rows.data_ptr(),
                self.inputs,
                part.columns,
                self.inputs,
                storage.number,
                part.first,
                part.step,
                self._data.data_ptr(),
            )

    def restore(self) -> list[torch.Tensor]:
        """Each layer's weights as they are used, float32 `[columns, inputs]`."""
        restored = [torch.empty(part.columns, self.inputs) for part in self._parts]
        for part, weight in zip(self._parts, restored, strict=True):
            self._pool.call.by_unpack(
                self._pool.address,
                self._data.data_ptr(),
                part.columns,
                self.inputs,
                self.storage.number,
                part.first,
                part.step,
                weight.data_ptr(),
            )
        return restored

    def look_up(self, columns: torch.Tensor) -> torch.Tensor:
        """Weights of some columns of a single layer, as an embedding: float32 `[..., inputs]`.

        `columns` are int64, each of them one of the layer's.
        """
        wanted = columns.contiguous()
        found = torch.empty(*wanted.shape, self.inputs)
        self._pool.call.by_look_up(
            self._pool.address,
            self._data.data_ptr(),
            self.columns,
            self.inputs,
            self.storage.number,
            wanted.data_ptr(),
            wanted.numel(),
            found.data_ptr(),
        )
        return found

    def multiply(
        self,
        rows: torch.Tensor,
        adapters: RowAdapters | None = None,
        outputs: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`[rows, inputs]` to float32 `[rows, columns]`, with what adapters add to each layer.

        Args:
            rows: any floating type.
            adapters: of the rows.
            outputs: what an earlier call with as many rows has answered, to be written over.

        Raises:
            ValueError: `outputs` are of another shape.
        """
        width = -(-self.inputs // _INPUT_GROUP) * _INPUT_GROUP
        padded = rows
        if width > self.inputs or rows.dtype is not torch.float32 or not rows.is_contiguous():
            padded = torch.zeros(len(rows), width)
            padded[:, : self.inputs] = rows
        if outputs is not None and outputs.shape != (len(rows), self.columns):
            raise ValueError(
                f"outputs are {tuple(outputs.shape)}; {len(rows)} rows make {self.columns} columns"
            )
        if outputs is None:
            panels = -(-self.columns // PANEL_COLUMNS)
            outputs = torch.empty(len(rows), panels * PANEL_COLUMNS)[:, : self.columns]
        matrix = self.matrix()
        self._pool.call.by_linear(
            self._pool.address,
            matrix.data,
            matrix.columns,
            matrix.inputs,
            matrix.storage,
            matrix.bias,
            padded.data_ptr(),
            width,
            len(rows),
            outputs.data_ptr(),
            outputs.stride(0),
            adapters.slots.data_ptr() if adapters is not None else None,
            adapters.linears if adapters is not None else None,
            len(self._parts),
            self._parts[0].step > 1,
        )
        return outputs

    def matrix(self) -> NativeMatrix:
        """For the library; valid while this object lives."""
        bias = self._bias.data_ptr() if self._bias is not None else None
        return NativeMatrix(
            self._data.data_ptr(), bias, self.columns, self.inputs, self.storage.number
        )
