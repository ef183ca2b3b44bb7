"""The memory a planned deployment has for KV: GPU memory less weights, less a stated allowance.

Nothing is measured here; a server measures at load. Figures are of one rank or of one group, as
their names say. Units: bytes, tokens.
"""

from dataclasses import dataclass

from blockyard.scheduler.capacity.kv_math import ModelShape, element_bits
from blockyard.scheduler.config import DEFAULT_BLOCK_SIZE

__all__ = ["DEFAULT_ALLOWANCE_BYTES", "KvBudget", "MemoryTooSmall"]

DEFAULT_ALLOWANCE_BYTES = 2 * 2**30
"""A GPU's CUDA context, activations and graphs: between 1 and 4 GiB as a rule, so a guess."""


class MemoryTooSmall(ValueError):
    """Weights and allowance leave no room for KV."""


@dataclass(frozen=True, slots=True)
class KvBudget:
    """Where a model is to run, and what that leaves for KV.

    Attributes:
        shape: of the model.
        limit: tokens a contiguous server reserves for each request.
        gpu_memory_bytes: of one GPU; None if `kv_memory_bytes` is given or derived.
        kv_memory_bytes: for KV in one group, over its ranks; None: what the rest leaves.
        num_ranks: GPUs that share one copy of the model.
        num_gpus: all GPUs.
        weight_dtype, kv_dtype: of weights and of KV.
        block_size: token slots in a block.
        allowance_bytes: of one GPU, for what is neither weights nor KV.
        draft: of a model that guesses, whose KV lies in the same blocks; None: there is none.
    """

    shape: ModelShape
    limit: int
    gpu_memory_bytes: int | None = None
    kv_memory_bytes: int | None = None
    num_ranks: int = 1
    num_gpus: int = 1
    weight_dtype: str = "fp16"
    kv_dtype: str = "fp16"
    block_size: int = DEFAULT_BLOCK_SIZE
    allowance_bytes: int = DEFAULT_ALLOWANCE_BYTES
    draft: ModelShape | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that no server could have."""
        for name in ("limit", "num_ranks", "num_gpus", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_gpus < self.num_ranks:
            raise ValueError(
                f"{self.num_ranks} ranks need as many GPUs, there are {self.num_gpus}; "
                "lower --tp or raise --gpus"
            )
        element_bits(self.weight_dtype)
        element_bits(self.kv_dtype)

    @property
    def num_groups(self) -> int:
        """Copies of the model."""
        return self.num_gpus // self.num_ranks

    @property
    def shapes(self) -> tuple[ModelShape, ...]:
        """Of the model, and of the one that guesses beside it."""
        return (self.shape,) if self.draft is None else (self.shape, self.draft)

    @property
    def weight_bytes(self) -> int:
        """Weights of one group."""
        return sum(shape.weight_bytes(self.weight_dtype) for shape in self.shapes)

    @property
    def rank_weight_bytes(self) -> int:
        """Weights on one rank, split evenly."""
        return -(-self.weight_bytes // self.num_ranks)

    @property
    def kv_bytes_per_token(self) -> int:
        """KV of one token, stored once."""
        return sum(shape.kv_bytes_per_token(self.kv_dtype) for shape in self.shapes)

    @property
    def rank_kv_bytes_per_token(self) -> int:
        """KV of one token on the fullest rank."""
        return sum(
            shape.rank_kv_bytes_per_token(self.kv_dtype, self.num_ranks) for shape in self.shapes
        )

    @property
    def has_memory(self) -> bool:
        """Whether it says how much memory there is."""
        return self.gpu_memory_bytes is not None or self.kv_memory_bytes is not None

    def rank_kv_memory_bytes(self) -> int:
        """Memory for KV on one rank.

        Raises:
            MemoryTooSmall: there is none.
        """
        if self.kv_memory_bytes is not None:
            room = self.kv_memory_bytes // self.num_ranks
        else:
            room = self.gpu_memory_bytes or 0
            room -= self.rank_weight_bytes + self.allowance_bytes
        if room < self.rank_kv_bytes_per_token * self.block_size:
            raise MemoryTooSmall(self._too_small())
        return room

    def _too_small(self) -> str:
        if self.kv_memory_bytes is not None:
            return f"{self.kv_memory_bytes:,} B of KV memory do not hold one block; give more"
        memory = self.gpu_memory_bytes or 0
        usable = memory - self.allowance_bytes
        weights = self.weight_bytes
        advice = "use a GPU with more memory"
        if usable > 0:
            ranks = 1 << (weights // usable).bit_length()
            advice = (
                f"try --tp {max(ranks, 2 * self.num_ranks)}, narrower --weights, or a larger GPU"
            )
        return (
            f"{self.rank_weight_bytes:,} B of weights and an allowance of "
            f"{self.allowance_bytes:,} B leave no room for KV in {memory:,} B; {advice}"
        )
