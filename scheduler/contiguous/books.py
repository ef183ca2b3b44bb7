"""The books of one contiguous server's KV memory, and its "out of memory" moments, frozen.

Counting happens in `contiguous.py`; this module gives the counts their names and ratios. Units:
token slots.
"""

from dataclasses import dataclass

__all__ = ["ContiguousBooks", "Refusal"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The moment when a request got nothing: what it needed and what lay idle. In slots."""

    needed: int
    free: int
    largest_hole: int
    reserved_idle: int
    running: int

    @property
    def by_fragmentation(self) -> bool:
        """Enough was free, only not in one piece."""
        return self.free >= self.needed

    def describe(self, bytes_per_slot: int) -> str:
        """The moment in words, such as an operator meets it."""
        free, hole, needed, idle = (
            f"{slots * bytes_per_slot / 1e9:.2f} GB"
            for slots in (self.free, self.largest_hole, self.needed, self.reserved_idle)
        )
        return (
            f"out of memory with {free} free: {needed} needed in one piece, largest hole {hole}, "
            f"and {idle} reserved but empty; {self.running} requests running"
        )


@dataclass(frozen=True, slots=True)
class ContiguousBooks:
    """One moment's counts. `filled + reservation + internal + free` is the capacity."""

    policy: str
    capacity: int
    running: int
    filled: int
    reservation: int
    internal: int
    free: int
    largest_hole: int
    num_holes: int
    refusals: int
    refusals_by_fragmentation: int
    moves: int
    moved_slots: int
    first_refusal: Refusal | None
    first_fragmented: Refusal | None
    """The first refusal while enough was free, only not in one piece."""

    @property
    def external_fragmentation(self) -> float:
        """`1 - largest_free / total_free`; 0 when nothing is free."""
        return 1 - self.largest_hole / self.free if self.free else 0.0

    @property
    def filled_ratio(self) -> float:
        """Filled slots over allocated slots; 0 when nothing is allocated."""
        allocated = self.capacity - self.free
        return self.filled / allocated if allocated else 0.0

    @property
    def pool_filled_ratio(self) -> float:
        """Filled slots over all slots."""
        return self.filled / self.capacity
