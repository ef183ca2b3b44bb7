"""Counts of requests that went to or came from another group, and of the KV that went with them.

Units: requests, blocks, tokens, bytes over all ranks, seconds.
"""

from dataclasses import dataclass

from blockyard.scheduler.ledger import MoveCounts

__all__ = ["MoveTally"]


@dataclass(slots=True)
class MoveTally:
    """See `MoveCounts` for what is counted."""

    brought: int = 0
    recomputed: int = 0
    cut_short: int = 0
    blocks_out: int = 0
    blocks_in: int = 0
    tokens_in: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    estimated_seconds: float = 0.0
    seconds: float = 0.0
    wire_bytes_per_second: float = 0.0

    def counts(self) -> MoveCounts:
        """As they stand."""
        return MoveCounts(
            brought=self.brought,
            recomputed=self.recomputed,
            cut_short=self.cut_short,
            blocks_out=self.blocks_out,
            blocks_in=self.blocks_in,
            tokens_in=self.tokens_in,
            bytes_out=self.bytes_out,
            bytes_in=self.bytes_in,
            estimated_seconds=self.estimated_seconds,
            seconds=self.seconds,
        )
