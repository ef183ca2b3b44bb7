"""The fused layers in plain torch: the yardstick of the kernels.

Sums are taken in float32, or in float64 where that is what comes in; results have the dtype of
what comes in. Sources: RMSNorm, Zhang and Sennrich 2019, eq. 4; gated units, Shazeer 2020.
"""

import torch
from torch.nn import functional

__all__ = ["ReferenceLayers"]


class ReferenceLayers:
    """See `blockyard.cuda.backend.FusedLayers`."""

    def add_rms_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`hidden + residual`, normalised and times `weight`; and the sum, rounded."""
        total = hidden + residual
        return self.rms_norm(total, weight, epsilon), total

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Rows of the last axis normalised and times `weight`."""
        wide = _wide(rows)
        factor = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + epsilon)
        return (wide * factor * weight.to(wide.dtype)).to(rows.dtype)

    def silu_and_multiply(self, gate_and_up: torch.Tensor) -> torch.Tensor:
        """`silu(gate) * up`."""
        gate, up = _wide(gate_and_up).chunk(2, dim=-1)
        return (functional.silu(gate) * up).to(gate_and_up.dtype)

    def gelu_and_multiply(self, gate_and_up: torch.Tensor) -> torch.Tensor:
        """`gelu(gate) * up`, the tanh form."""
        gate, up = _wide(gate_and_up).chunk(2, dim=-1)
        return (functional.gelu(gate, approximate="tanh") * up).to(gate_and_up.dtype)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()
