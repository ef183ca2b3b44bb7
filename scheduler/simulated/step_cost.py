"""Seconds of a group's steps on a device: the roofline of its fullest rank, and its collectives.

A step that only decodes is priced from two sums, so that many such steps can be priced without
looking at their rows. Good for comparing, not for promises. Units: tokens, blocks, seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from blockyard.scheduler.capacity.kv_math import ModelShape, element_bits
from blockyard.scheduler.simulated.roofline import DeviceSpeed, step_seconds
from blockyard.scheduler.simulated.roofline import ModelShape as CostShape

__all__ = ["RooflineCost", "StepCost", "make_step_cost"]

_COLLECTIVE_SECONDS = 10e-6
"""One all-reduce of a few rows over NVLink; a layer needs two."""


class StepCost(Protocol):
    """What steps of a group cost, however it is known. Sizes and rates are of one rank."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        ...

    @property
    def link_bytes_per_second(self) -> float:
        """To host memory and back."""
        ...

    def compute_seconds(self, starts: Sequence[int], counts: Sequence[int]) -> float:
        """A step whose rows compute `counts[i]` tokens from position `starts[i]` on."""
        ...

    def decode_seconds(self, num_rows: int, context_tokens: int) -> float:
        """A step of one token a row, whose rows read `context_tokens` tokens in all."""
        ...

    def decode_run(self, num_rows: int, context_tokens: int, num_steps: int) -> list[float]:
        """`decode_seconds` of steps that follow one another: each reads a token a row more."""
        ...

    def copy_seconds(self, num_blocks: int) -> float:
        """Blocks moved to host memory or back."""
        ...


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """What steps cost on one rank of a group by its device's data sheet.

    Attributes:
        shape: this rank's part of the model.
        speed: of its device.
        block_size: token slots in a block.
    """

    shape: CostShape
    speed: DeviceSpeed
    block_size: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.block_size * self.shape.kv_bytes_per_token

    @property
    def link_bytes_per_second(self) -> float:
        """To host memory and back."""
        return self.speed.link_bytes_per_second

    def compute_seconds(self, starts: Sequence[int], counts: Sequence[int]) -> float:
        """A step whose rows compute `counts[i]` tokens from position `starts[i]` on."""
        rows = len(counts)
        if rows and sum(counts) == rows:
            return self.decode_seconds(rows, sum(starts) + rows)
        return step_seconds(self.shape, self.speed, starts, counts)

    def decode_seconds(self, num_rows: int, context_tokens: int) -> float:
        """A step of one token a row, whose rows read `context_tokens` tokens in all."""
        base, each = self._decode_line(num_rows)
        return base + each * context_tokens

    def decode_run(self, num_rows: int, context_tokens: int, num_steps: int) -> list[float]:
        """`decode_seconds` of steps that follow one another: each reads a token a row more."""
        base, each = self._decode_line(num_rows)
        end = context_tokens + num_rows * num_steps
        return [base + each * context for context in range(context_tokens, end, num_rows)]

    def copy_seconds(self, num_blocks: int) -> float:
        """Blocks moved to host memory or back."""
        return num_blocks * self.block_bytes / self.speed.link_bytes_per_second

    def _decode_line(self, num_rows: int) -> tuple[float, float]:
        """Seconds of a step of so many decodes, and for each token that they read."""
        shape, speed = self.shape, self.speed
        bandwidth = speed.memory_bytes_per_second * speed.memory_share
        arithmetic = speed.operations_per_second * speed.operations_share
        linear = max(
            shape.num_parameters * shape.bytes_per_element / bandwidth,
            2.0 * shape.num_parameters * num_rows / arithmetic,
        )
        width = shape.num_layers * shape.num_query_heads * shape.head_dim
        read = max(shape.kv_bytes_per_token / bandwidth, 4.0 * width / arithmetic)
        return speed.step_overhead_seconds + linear, read


def make_step_cost(
    shape: ModelShape, speed: DeviceSpeed, block_size: int, num_ranks: int, dtype: str = "fp16"
) -> RooflineCost:
    """Costs of a model split over `num_ranks` devices.

    The number of query heads, which `shape` does not tell, is estimated from its parameters: a
    decoder has about 12 times the square of its width in each layer. It only prices attention
    where arithmetic bounds it, in long prefills.
    """
    width = (shape.num_parameters / (12 * shape.num_layers)) ** 0.5
    per_kv_head = max(1, round(width / shape.head_dim / shape.num_kv_heads))
    kv_heads = shape.rank_kv_heads(num_ranks)
    overhead = speed.step_overhead_seconds
    if num_ranks > 1:
        overhead += 2 * shape.num_layers * _COLLECTIVE_SECONDS
    rank_speed = DeviceSpeed(
        speed.memory_bytes_per_second,
        speed.operations_per_second,
        speed.link_bytes_per_second,
        speed.memory_share,
        speed.operations_share,
        overhead,
    )
    rank_shape = CostShape(
        num_parameters=shape.num_parameters / num_ranks,
        num_layers=shape.num_layers,
        num_query_heads=kv_heads * per_kv_head,
        num_kv_heads=kv_heads,
        head_dim=shape.head_dim,
        bytes_per_element=max(1, element_bits(dtype) // 8),
    )
    return RooflineCost(rank_shape, rank_speed, block_size)
