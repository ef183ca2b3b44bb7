"""Has the modules of a decoder compute with the packed weights that native layers keep.

Their own weights are given up then; whoever needs a linear's output by itself, as adapters do, runs
the modules. Knows no steps.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from blockyard.workers.cpu.packed import PackedLinear
from blockyard.workers.cpu.recognise import DecoderParts

__all__ = ["PackedGroup", "PackedParts", "use_packed_weights"]


class PackedParts(Protocol):
    """Packed weights of one layer."""

    projections: PackedLinear
    output: PackedLinear
    gate_up: PackedLinear
    down: PackedLinear


class PackedGroup:
    """Linears that read the same rows and are packed as one.

    Whoever comes first has all of them computed; the others take theirs from that.
    """

    def __init__(self, packed: PackedLinear) -> None:
        self._packed = packed
        self._input: torch.Tensor | None = None
        self._outputs: dict[int, torch.Tensor] = {}

    def part(self, number: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """A `forward` of one of them, from `[..., inputs]` to `[..., columns]`."""
        return partial(self._multiply, number)

    def _multiply(self, number: int, input: torch.Tensor) -> torch.Tensor:
        if self._input is not input or number not in self._outputs:
            rows = input.reshape(-1, input.shape[-1])
            parts = self._packed.split(self._packed.multiply(rows))
            self._input = input
            self._outputs = {
                place: part.reshape(*input.shape[:-1], -1) for place, part in enumerate(parts)
            }
        output = self._outputs.pop(number)
        if not self._outputs:
            self._input = None
        return output


def use_packed_weights(
    parts: DecoderParts,
    layers: Sequence[PackedParts],
    head: PackedLinear,
    embed: Callable[[torch.Tensor], torch.Tensor] | None,
) -> None:
    """Have the modules of `parts` compute with packed weights from now on.

    Args:
        parts: of the decoder.
        layers: packed weights of each layer.
        head: the head's.
        embed: looks tokens up where the embedding gives up its weights; None: the head does.
    """
    for layer, packed in zip(parts.layers, layers, strict=True):
        _share(packed.projections, layer.query, layer.key, layer.value)
        _share(packed.gate_up, layer.gate, layer.up)
        _replace(layer.output, packed.output)
        _replace(layer.down, packed.down)
    whole = PackedGroup(head).part(0)
    assemble = getattr(parts.head, "assemble", None)
    _compute_by(parts.head, whole if assemble is None else lambda input: assemble(whole(input)))
    if parts.tied:
        _compute_by(parts.embedding, embed or head.look_up)


def _compute_by(module: Any, forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
    module.forward = forward


def _share(packed: PackedLinear, *linears: nn.Linear) -> None:
    group = PackedGroup(packed)
    for number, linear in enumerate(linears):
        _compute_by(linear, group.part(number))


def _replace(linear: Any, packed: PackedLinear) -> None:
    """A linear of its own; one that sums over ranks sums what is computed here, without a bias."""
    method = "product" if hasattr(linear, "product") else "forward"
    setattr(linear, method, PackedGroup(packed).part(0))
