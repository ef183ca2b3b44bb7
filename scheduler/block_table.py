"""The blocks of one request, in order of position. Knows nothing of the pool they come from."""

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["BlockTable"]


@dataclass(slots=True)
class BlockTable:
    """A request's block ids; block `i` holds positions `i * block_size` up to the next."""

    block_size: int
    block_ids: list[int] = field(default_factory=list)
    num_slots: int = 0
    """Token slots in the blocks held."""
    num_writable: int = 0
    """Slots up to which it may be written to: without a last block that others may share."""

    def blocks_short(self, num_tokens: int) -> int:
        """How many more blocks are needed to hold `num_tokens` tokens."""
        return max(0, -(-num_tokens // self.block_size) - len(self.block_ids))

    def extend(self, block_ids: Sequence[int]) -> None:
        """Append blocks at the end."""
        self.block_ids.extend(block_ids)
        self.num_slots = self.num_writable = len(self.block_ids) * self.block_size

    def append(self, block_id: int) -> None:
        """Append one block at the end of blocks that may all be written to."""
        self.block_ids.append(block_id)
        self.num_slots = self.num_writable = self.num_slots + self.block_size

    def shrink(self, keep: int) -> list[int]:
        """Give up all but the first `keep` blocks; returns the others, the last first."""
        given_up = self.block_ids[keep:]
        given_up.reverse()
        del self.block_ids[keep:]
        self.num_slots = len(self.block_ids) * self.block_size
        self.num_writable = min(self.num_writable, self.num_slots)
        return given_up
