"""Cuts layers of a model down to one rank's part, and remembers which part that is.

The model is on the meta device: parameters have shapes and no memory. Whoever calls says what to
keep. Knows neither plans nor shares.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from blockyard.workers.checkpoint import Slice
from blockyard.workers.collectives import Communicator
from blockyard.workers.partition import Span
from blockyard.workers.sharded_layers import RowConv, RowLinear

__all__ = ["Cutter", "inputs_of", "outputs_of"]


class Cutter:
    """Cuts one model.

    Attributes:
        slices: by parameter, which part of the whole tensor is kept.
    """

    def __init__(self, model: nn.Module, communicator: Communicator) -> None:
        self.slices: dict[str, Slice] = {}
        self._model = model
        self._communicator = communicator

    def columns(self, name: str, spans: Sequence[Span]) -> None:
        """Keep these columns of a linear's output."""
        layer: Any = self._model.get_submodule(name)
        self.parameter(f"{name}.weight", 1 if _is_conv(layer) else 0, spans)
        if layer.bias is not None:
            self.parameter(f"{name}.bias", 0, spans)
        kept = sum(len(span) for span in spans)
        if _is_conv(layer):
            layer.nf = kept
        else:
            layer.out_features = kept

    def rows(self, name: str, span: Span) -> None:
        """Take up these columns of the input, and sum the products over ranks."""
        layer: Any = self._model.get_submodule(name)
        kind = RowConv if _is_conv(layer) else RowLinear
        self.replace(name, kind(len(span), layer, self._communicator))
        self.slices[f"{name}.weight"] = Slice(0 if _is_conv(layer) else 1, (span,), len(span))

    def parameter(
        self, name: str, dim: int, spans: Sequence[Span], length: int | None = None
    ) -> None:
        """Keep these spans of one dimension, filled up with zeros to `length`."""
        owner, _, leaf = name.rpartition(".")
        module = self._model.get_submodule(owner)
        whole: torch.Tensor = getattr(module, leaf)
        shape = list(whole.shape)
        shape[dim] = sum(len(span) for span in spans) if length is None else length
        setattr(module, leaf, nn.Parameter(whole.new_empty(shape), requires_grad=False))
        self.slices[name] = Slice(dim, tuple(spans), shape[dim])

    def replace(self, name: str, layer: nn.Module) -> None:
        """Put another layer in a layer's place."""
        owner, _, leaf = name.rpartition(".")
        setattr(self._model.get_submodule(owner), leaf, layer)


def inputs_of(layer: nn.Module) -> int:
    """Columns that a linear takes."""
    weight: Any = layer.weight
    return int(weight.shape[0 if _is_conv(layer) else 1])


def outputs_of(layer: nn.Module) -> int:
    """Columns that a linear makes."""
    weight: Any = layer.weight
    return int(weight.shape[1 if _is_conv(layer) else 0])


def _is_conv(layer: nn.Module) -> bool:
    """Whether it is GPT-2's kind of linear, which keeps its weight the other way round."""
    return not isinstance(layer, nn.Linear)
