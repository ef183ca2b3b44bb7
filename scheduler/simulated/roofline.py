"""How long a step would take on a device that is not here: bytes and operations over what it does.

A step is its linear layers (all weights are read once, each token costs two operations a
parameter) and its attention (each row reads its context's KV; a prefill row also computes against
it). Either is bound by memory or by arithmetic, whichever takes longer. Good to some 20 %: for
simulations that compare policies on the same model, not for promises to anybody. Units: bytes,
operations, tokens, seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["H200", "LLAMA_8B", "DeviceSpeed", "ModelShape", "step_seconds"]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a decoder's cost depends on."""

    num_parameters: float
    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    bytes_per_element: int = 2

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.bytes_per_element


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """A device's data sheet, and the part of it that good kernels reach.

    Attributes:
        memory_bytes_per_second: as printed.
        operations_per_second: dense, in the model's dtype, as printed.
        link_bytes_per_second: to host memory and back, as reached.
        memory_share: part of the bandwidth reached while streaming weights and KV.
        operations_share: part of the arithmetic reached by large matrix products.
        step_overhead_seconds: launches and sampling, whatever the step computes.
    """

    memory_bytes_per_second: float
    operations_per_second: float
    link_bytes_per_second: float
    memory_share: float = 0.8
    operations_share: float = 0.6
    step_overhead_seconds: float = 0.001


H200 = DeviceSpeed(4.8e12, 989e12, 50e9)
"""NVIDIA H200 SXM, fp16 without sparsity; PCIe 5.0 x16 reaches about 50 of its 64 GB/s."""

LLAMA_8B = ModelShape(8e9, num_layers=32, num_query_heads=32, num_kv_heads=8, head_dim=128)


def step_seconds(
    shape: ModelShape, speed: DeviceSpeed, starts: Sequence[int], counts: Sequence[int]
) -> float:
    """Seconds of a step whose rows compute `counts[i]` tokens from position `starts[i]` on."""
    if not len(counts):
        return 0.0
    bandwidth = speed.memory_bytes_per_second * speed.memory_share
    arithmetic = speed.operations_per_second * speed.operations_share
    start = np.asarray(starts, dtype=np.float64)
    count = np.asarray(counts, dtype=np.float64)
    linear = max(
        shape.num_parameters * shape.bytes_per_element / bandwidth,
        2.0 * shape.num_parameters * float(count.sum()) / arithmetic,
    )
    read = (start + count) * (shape.kv_bytes_per_token / bandwidth)
    # Scores and weighted values: two products, two operations each, over half the chunk's own
    # tokens and all those before it.
    width = shape.num_layers * shape.num_query_heads * shape.head_dim
    computed = 4.0 * width * count * (start + count / 2) / arithmetic
    return speed.step_overhead_seconds + linear + float(np.maximum(read, computed).sum())
