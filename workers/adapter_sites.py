"""Linears of a model to which adapters may add, and which part of each a rank has.

Knows no adapters. Units: columns, of a whole linear unless a rank's are named.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from blockyard.workers.checkpoint import Slice
from blockyard.workers.cutting import inputs_of, outputs_of
from blockyard.workers.partition import Span

__all__ = ["LinearSite", "LinearSites", "linear_shapes", "linear_sites"]

_IN_A_LAYER = re.compile(r"\.\d+\.")
_CONV = "Conv1D"
"""The class of GPT-2's linears."""


@dataclass(frozen=True, slots=True)
class LinearSite:
    """One linear.

    Attributes:
        name: of the module in the model.
        inputs, outputs: columns that the whole linear takes and makes.
        input_span: which of the inputs this rank takes, the products being summed; None: all.
        output_spans: which of the outputs this rank makes, in order; None: all.
    """

    name: str
    inputs: int
    outputs: int
    input_span: Span | None = None
    output_spans: tuple[Span, ...] | None = None

    @property
    def own_inputs(self) -> int:
        """Columns that this rank takes."""
        return self.inputs if self.input_span is None else len(self.input_span)

    @property
    def own_outputs(self) -> int:
        """Columns that this rank makes."""
        spans = self.output_spans
        return self.outputs if spans is None else sum(len(span) for span in spans)


LinearSites = Mapping[str, LinearSite]
"""By the module's name."""


def linear_shapes(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of a model's linears inside layers, before it is divided."""
    return {
        name: (inputs_of(module), outputs_of(module))
        for name, module in model.named_modules()
        if _IN_A_LAYER.search(name)
        and (isinstance(module, nn.Linear) or type(module).__name__ == _CONV)
    }


def linear_sites(
    shapes: Mapping[str, tuple[int, int]], slices: Mapping[str, Slice], model: Any
) -> dict[str, LinearSite]:
    """The same with what this rank keeps.

    Args:
        shapes: of the whole linears.
        slices: by parameter, what is kept of it.
        model: tells which linears lie the other way round.
    """
    return {
        name: _site(name, shape, slices.get(f"{name}.weight"), model.get_submodule(name))
        for name, shape in shapes.items()
    }


def _site(name: str, shape: tuple[int, int], part: Slice | None, module: nn.Module) -> LinearSite:
    if part is None:
        return LinearSite(name, *shape)
    makes_columns = part.dim == (0 if isinstance(module, nn.Linear) else 1)
    if makes_columns:
        return LinearSite(name, *shape, output_spans=part.spans)
    (span,) = part.spans
    return LinearSite(name, *shape, input_span=span)
