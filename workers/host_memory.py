"""A rank's blocks in host memory as plain bytes, for whoever carries them to another rank.

What two ranks call the layout is equal only where a block of one is worth as much as the other's:
shape, number formats, share of the model, and what float8 numbers are multiplied by. Knows neither
wires nor requests. Units: blocks, bytes.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from blockyard.workers.config import WorkerConfig
    from blockyard.workers.kv_cache import KVCache

__all__ = ["HostMemory", "SharesHostMemory", "host_memory_of"]


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The host pool of one rank.

    Attributes:
        layout: what a block is, in words; empty while that is not settled.
        block_bytes: of one block.
        content: all blocks, one after the other, writable bytes.
    """

    layout: str
    block_bytes: int
    content: memoryview

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return len(self.content) // self.block_bytes

    def run(self, first: int, count: int) -> memoryview:
        """Blocks that follow one another.

        Raises:
            ValueError: the pool has no such blocks.
        """
        if first < 0 or count < 0 or first + count > self.num_blocks:
            raise ValueError(
                f"host blocks {first} to {first + count - 1} are asked for; there are "
                f"{self.num_blocks}"
            )
        return self.content[first * self.block_bytes : (first + count) * self.block_bytes]


@runtime_checkable
class SharesHostMemory(Protocol):
    """An `Executor` whose host blocks may be read and written beside the steps that run.

    Only those that no plan has touched, or will touch, until somebody says that this is over.
    """

    def host_memory(self) -> HostMemory | None:
        """The host pool as it is now; None without one."""
        ...


def host_memory_of(cache: "KVCache | None", config: "WorkerConfig") -> HostMemory | None:
    """That of a rank with a real model."""
    if cache is None or not cache.num_host_blocks:
        return None
    parts = [part for part in (cache, cache.beside) if part is not None]
    layout = ""
    if all(part.scaled for part in parts):
        scales = [part.head_scales for part in parts if part.head_scales is not None]
        digest = blake2b(b"".join(s.cpu().numpy().tobytes() for s in scales), digest_size=8)
        place = f"rank {config.rank} of {config.world_size}"
        kept = f"{config.dtype}, {config.weights}, {cache.geometry}"
        layout = f"{place}, {kept}, scales {digest.hexdigest()}"
    content = cache.host_pool.numpy().data.cast("B")
    return HostMemory(layout, cache.geometry.block_bytes, content)
