"""What the ranks of a group have in memory: measured at load, unchanged afterwards.

Ranks differ where KV heads do not divide evenly, so one block has other bytes on another rank;
books in bytes are therefore made per rank and summed. Units: bytes.
"""

from dataclasses import dataclass

__all__ = ["GroupFacts", "RankFacts"]


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank's own bytes.

    `activation_bytes` is the peak of the largest step, 0 when it was not measured; `graph_bytes`
    is what captured CUDA graphs hold.
    """

    rank: int
    device: str
    block_bytes: int
    weight_bytes: int
    activation_bytes: int
    graph_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group's ranks, in rank order."""

    ranks: tuple[RankFacts, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all ranks."""
        return sum(rank.block_bytes for rank in self.ranks)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights over all ranks."""
        return sum(rank.weight_bytes for rank in self.ranks)

    @property
    def activation_bytes(self) -> int:
        """Peak bytes of the largest step over all ranks."""
        return sum(rank.activation_bytes for rank in self.ranks)

    @property
    def graph_bytes(self) -> int:
        """Bytes of captured CUDA graphs over all ranks."""
        return sum(rank.graph_bytes for rank in self.ranks)
