"""What this machine can do at most: memory read in a second, and multiplications.

Measured with the native linear itself, so that a step can be compared with what would be its floor
if nothing but weights were read and nothing but linears computed. Units: bytes and operations a
second, seconds.
"""

import time
from dataclasses import dataclass

import torch

from blockyard.workers.cpu.library import NativePool
from blockyard.workers.cpu.packed import PackedLinear, WeightStorage

__all__ = ["Ceilings", "DecoderWork", "measure_ceilings"]

_INPUTS = 1536
_STREAMED_COLUMNS = 65536
"""384 MiB of float32: a server's last cache holds 300."""

_COMPUTED_ROWS = 384
_COMPUTED_COLUMNS = 3072
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The best of some tries; an operation is one multiplication or one addition."""

    bytes_per_second: float
    operations_per_second: float


@dataclass(frozen=True, slots=True)
class DecoderWork:
    """What one token costs a decoder, attention left out.

    Attributes:
        weight_bytes: read by every step.
        layer_operations: of one token in all layers.
        head_operations: of one token that is sampled.
    """

    weight_bytes: int
    layer_operations: int
    head_operations: int

    def prefill_floor(self, tokens: int, ceilings: Ceilings) -> float:
        """Seconds that a prompt takes at least."""
        return tokens * self.layer_operations / ceilings.operations_per_second

    def decode_floor(self, rows: int, ceilings: Ceilings) -> float:
        """Seconds that a step of `rows` single tokens takes at least."""
        operations = rows * (self.layer_operations + self.head_operations)
        return max(
            self.weight_bytes / ceilings.bytes_per_second,
            operations / ceilings.operations_per_second,
        )


def measure_ceilings(pool: NativePool, storage: WeightStorage) -> Ceilings:
    """Measure this machine, computing with weights in `storage`; takes a second or two.

    A matrix unit takes six products of bfloat16 for one of float32, three with narrower weights.
    """
    streamed = PackedLinear(pool, [torch.zeros(_STREAMED_COLUMNS, _INPUTS)], WeightStorage.FP32)
    reading = _least_seconds(streamed, 1)
    computed = PackedLinear(pool, [torch.zeros(_COMPUTED_COLUMNS, _INPUTS)], storage)
    computing = _least_seconds(computed, _COMPUTED_ROWS)
    operations = 2 * _COMPUTED_ROWS * _COMPUTED_COLUMNS * _INPUTS
    return Ceilings(streamed.nbytes / reading, operations / computing)


def _least_seconds(layer: PackedLinear, rows: int) -> float:
    inputs = torch.zeros(rows, layer.inputs)
    outputs = layer.multiply(inputs)
    seconds = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        layer.multiply(inputs, outputs=outputs)
        seconds.append(time.perf_counter() - began)
    return min(seconds)
