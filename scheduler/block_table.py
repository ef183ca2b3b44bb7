"""The blocks of one request, in order of position. Knows nothing of the pool they come from."""

from dataclasses import dataclass, field

__all__ = ["BlockTable"]


@dataclass(slots=True)
class BlockTable:
    """A request's block ids; block `i` holds positions `i * block_size` up to the next."""

    block_size: int
    block_ids: list[int] = field(default_factory=list)

    @property
    def num_slots(self) -> int:
        """Token slots in the blocks held."""
        return len(self.block_ids) * self.block_size

    def blocks_short(self, num_tokens: int) -> int:
        """How many more blocks are needed to hold `num_tokens` tokens."""
        return max(0, -(-num_tokens // self.block_size) - len(self.block_ids))

    def extend(self, block_ids: tuple[int, ...]) -> None:
        """Append blocks at the end."""
        self.block_ids.extend(block_ids)

    def clear(self) -> tuple[int, ...]:
        """Give up all blocks and return them, in order."""
        block_ids = tuple(self.block_ids)
        self.block_ids.clear()
        return block_ids
