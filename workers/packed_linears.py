"""Linears of a checkpoint that AWQ or GPTQ has packed, unpacked to plain weights.

Both keep numbers of few bits in int32, with a scale and a zero for each group of inputs. What comes
out is `scale * (number - zero)` in float32: the checkpoint's weights as they are meant, held in the
dtype of the model. Sources: the packing of AutoAWQ's GEMM layout and of AutoGPTQ. Reads no files.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from blockyard.workers.contract import UnsupportedModel

__all__ = ["AwqPacking", "GptqPacking", "Packing", "packing_of"]

_WORD_BITS = 32
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column of eight that each four bits of a word hold, lowest bits first."""


class Packing(Protocol):
    """How a linear `[outputs, inputs]` is kept in several tensors."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Ends of the names of tensors that stand for `weight`; the first is always there."""
        ...

    def shape(self, first: tuple[int, ...]) -> tuple[int, int]:
        """Of the weight, from that of the first part."""
        ...

    def unpack(self, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The weight, float32 `[outputs, inputs]`."""
        ...


@dataclass(frozen=True, slots=True)
class AwqPacking:
    """AutoAWQ's GEMM layout: words hold eight outputs, in `_AWQ_ORDER`.

    `qweight` is `[inputs, outputs / 8]`, `qzeros` `[groups, outputs / 8]`, `scales`
    `[groups, outputs]`.
    """

    parts: tuple[str, ...] = ("qweight", "qzeros", "scales")

    def shape(self, first: tuple[int, ...]) -> tuple[int, int]:
        """See `Packing`."""
        return first[1] * 8, first[0]

    def unpack(self, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """See `Packing`."""
        numbers, zeros = (self._columns(parts[name]) for name in ("qweight", "qzeros"))
        scales = parts["scales"].float()
        groups = len(scales)
        grouped = numbers.view(groups, -1, numbers.shape[1])
        weight = (grouped - zeros[:, None]) * scales[:, None]
        return weight.flatten(0, 1).t().contiguous()

    def _columns(self, words: torch.Tensor) -> torch.Tensor:
        """`[rows, words]` to float32 `[rows, 8 * words]`."""
        fields = _fields(words, 4)  # [rows, words, 8]
        return fields[..., torch.tensor(_AWQ_ORDER).argsort()].flatten(1)


@dataclass(frozen=True, slots=True)
class GptqPacking:
    """AutoGPTQ's layout: words hold consecutive inputs, those of zeros consecutive outputs.

    `qweight` is `[inputs / n, outputs]`, `qzeros` `[groups, outputs / n]`, `scales`
    `[groups, outputs]`, `g_idx` `[inputs]`, the group of each input. Zeros are kept less 1, unless
    `exact_zeros`.
    """

    bits: int
    exact_zeros: bool
    parts: tuple[str, ...] = ("qweight", "qzeros", "scales", "g_idx")

    def shape(self, first: tuple[int, ...]) -> tuple[int, int]:
        """See `Packing`."""
        return first[1], first[0] * (_WORD_BITS // self.bits)

    def unpack(self, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """See `Packing`."""
        fields = _fields(parts["qweight"].t(), self.bits)  # [outputs, words, n]
        numbers = fields.flatten(1)
        scales = parts["scales"].float()
        zeros = _fields(parts["qzeros"], self.bits).flatten(1)
        if not self.exact_zeros:
            # The greatest number stands for 0, less 1.
            zeros = (zeros + 1) % (1 << self.bits)
        inputs = numbers.shape[1]
        group_of = parts.get("g_idx")
        if group_of is None:
            group_of = torch.arange(inputs) // -(-inputs // len(scales))
        group_of = group_of.long()
        return ((numbers - zeros[group_of].t()) * scales[group_of].t()).contiguous()


def _fields(words: torch.Tensor, bits: int) -> torch.Tensor:
    """The numbers in int32 `[..., words]`, lowest bits first: float32 `[..., words, n]`."""
    shifts = torch.arange(0, _WORD_BITS, bits, dtype=torch.int32)
    return ((words[..., None] >> shifts) & ((1 << bits) - 1)).float()


def packing_of(settings: Mapping[str, Any] | None) -> Packing | None:
    """What a configuration's `quantization_config` says of a checkpoint; None: nothing is packed.

    Raises:
        UnsupportedModel: it is packed in a way that is not read.
    """
    if not settings:
        return None
    method, bits = settings.get("quant_method"), settings.get("bits", settings.get("w_bit"))
    if method == "awq":
        version = str(settings.get("version", "gemm")).lower()
        if bits != 4 or version != "gemm" or settings.get("zero_point") is False:
            raise UnsupportedModel(
                f"the checkpoint is packed by AWQ with {bits} bits in layout {version}; read are "
                "4 bits with zeros in layout gemm"
            )
        return AwqPacking()
    if method == "gptq":
        kind = str(settings.get("checkpoint_format", "gptq")).lower()
        if bits not in (4, 8) or kind not in ("gptq", "gptq_v2"):
            raise UnsupportedModel(
                f"the checkpoint is packed by GPTQ with {bits} bits in format {kind}; read are 4 "
                "and 8 bits in formats gptq and gptq_v2"
            )
        return GptqPacking(bits, exact_zeros=kind == "gptq_v2")
    raise UnsupportedModel(
        f"the checkpoint is quantised by {method!r}, which is not read; give AWQ, GPTQ or "
        "an unquantised one"
    )
