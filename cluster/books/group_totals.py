"""Counts of groups added up: of those that are there, and what those did that have gone.

A group that was formed anew counts from 0; what it had counted before is kept. Knows no meaning of
counts.
"""

from dataclasses import fields
from typing import Generic, TypeVar

from blockyard.scheduler.ledger import MoveCounts, PreemptionCounts, add_counts

__all__ = ["GroupTotals"]

Counts = TypeVar("Counts", bound=PreemptionCounts | MoveCounts)


class GroupTotals(Generic[Counts]):
    """Of one kind of counts, a dataclass of numbers; `nothing` is what a new group has."""

    def __init__(self, nothing: Counts) -> None:
        self._gone = nothing
        self._of_groups: dict[str, Counts] = {}

    def note(self, group_id: str, counts: Counts) -> None:
        """A group's counts have come."""
        before = self._of_groups.get(group_id, counts)
        if any(getattr(counts, f.name) < getattr(before, f.name) for f in fields(counts)):
            self._gone = add_counts(self._gone, before)
        self._of_groups[group_id] = counts

    def note_gone(self, group_id: str) -> None:
        """A group has gone; what it has done stays."""
        counts = self._of_groups.pop(group_id, None)
        if counts is not None:
            self._gone = add_counts(self._gone, counts)

    def total(self) -> Counts:
        """All of them."""
        total = self._gone
        for counts in self._of_groups.values():
            total = add_counts(total, counts)
        return total
