"""The groups of one model in the order in which requests want them, and how far ahead each is fed.

Whatever changes in a group moves it in a sorted list, so that a request looks at the few that can
be the best for it, however many there are. A request that none can start now may still be given to
one whose own queue is short: its lead, as many as it gets through between two reports, so that it
never runs dry; no more, so that the rest may yet go elsewhere. Knows no processes. Units: blocks,
tokens, requests.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Protocol

from blockyard.scheduler.asking import Asking
from blockyard.scheduler.placement import Candidate
from blockyard.scheduler.prefix_view import PrefixView

__all__ = ["LEAST_LEAD", "MOST_LEAD", "GroupBoard", "OfferedGroup", "next_lead"]

LEAST_LEAD = 4
MOST_LEAD = 256
_LOOKED_AT = 8
"""Groups with the shortest queues that are compared when a request cannot start in any."""
_NOBODY = 2**62

_Entry = tuple[int, int, int, str]


class OfferedGroup(Protocol):
    """A group as whoever sees all of them has it on its books."""

    @property
    def candidate(self) -> Candidate:
        """As it stands."""
        ...

    @property
    def prefix(self) -> PrefixView:
        """Blocks that can be found there."""
        ...

    @property
    def lead(self) -> int:
        """Requests that its own queue may hold."""
        ...


def next_lead(lead: int, before: Candidate, now: Candidate, others_wait: bool) -> int:
    """How long a group's own queue may be, after books that follow those of `before`.

    One that had all it may have and has used it up while others wait elsewhere gets twice as much;
    one that has most of it left gets less.
    """
    left = now.num_waiting
    if others_wait and not left and before.num_waiting >= lead:
        return min(2 * lead, MOST_LEAD)
    if left > lead // 2:
        return max(LEAST_LEAD, lead - 1 - lead // 8)
    return lead


class GroupBoard:
    """Those that take requests. Its owner tells of every change of one."""

    def __init__(self) -> None:
        self._groups: dict[str, OfferedGroup] = {}
        self._entries: dict[str, _Entry] = {}
        self._order: list[_Entry] = []
        self._fed: dict[str, None] = {}
        # Priority of the least urgent in each full group, and all of them in order.
        self._yielding: dict[str, int] = {}
        self._priorities: list[int] = []
        self.num_waiting = 0
        """Requests without a place in all of them together."""

    def __len__(self) -> int:
        """So many groups."""
        return len(self._groups)

    def __iter__(self) -> Iterator[OfferedGroup]:
        """All of them."""
        return iter(self._groups.values())

    @property
    def group_ids(self) -> set[str]:
        """All of them, by id."""
        return set(self._groups)

    def most_known(self, asking: Asking) -> int:
        """Leading blocks of a request that are known in some group, at the most."""
        return max((_num_known(group, asking) for group in self._groups.values()), default=0)

    @property
    def least_urgent(self) -> int:
        """Priority of the least urgent that waits or would give way in a full group."""
        return self._priorities[0] if self._priorities else _NOBODY

    def put(self, group: OfferedGroup) -> None:
        """A group takes requests, or has changed."""
        candidate = group.candidate
        group_id, ledger = candidate.group_id, candidate.ledger
        free, waiting = candidate.free_blocks, candidate.num_waiting
        entry = (waiting, -free, ledger.requests.running, group_id)
        before = self._entries.get(group_id)
        self._groups[group_id] = group
        self._note_yielding(group_id, _least_urgent(candidate))
        if waiting < group.lead:
            self._fed[group_id] = None
        else:
            self._fed.pop(group_id, None)
        if entry == before:
            return
        self.num_waiting += waiting - (before[0] if before is not None else 0)
        if before is not None:
            del self._order[bisect_left(self._order, before)]
        self._entries[group_id] = entry
        insort(self._order, entry)

    def remove(self, group_id: str) -> None:
        """A group takes no more requests, or has gone."""
        if self._groups.pop(group_id, None) is not None:
            entry = self._entries.pop(group_id)
            del self._order[bisect_left(self._order, entry)]
            self.num_waiting -= entry[0]
            self._fed.pop(group_id, None)
            self._note_yielding(group_id, _NOBODY)

    def best(self, asking: Asking) -> tuple[OfferedGroup, int] | None:
        """The group that can start a request soonest, as `placement.delay` has it.

        With it, leading blocks of the request that are known there.
        """
        most_known = len(asking.block_keys)
        found: tuple[_Entry, OfferedGroup, int] | None = None
        for waits, lacking, running, group_id in self._order:
            if found is not None and (waits, lacking - most_known, running, group_id) >= found[0]:
                break  # even if it knew all of the prompt: and those that follow are worse
            group = self._groups[group_id]
            known = _num_known(group, asking)
            free = known - lacking
            short = _is_short(group.candidate, asking, free)
            delay = (waits + short, -free, running, group_id)
            if found is None or delay < found[0]:
                found = delay, group, known
        return None if found is None else found[1:]

    def starting(self, asking: Asking) -> tuple[OfferedGroup, int] | None:
        """The best group, if it can start the request now."""
        if not self._order or self._order[0][0]:
            return None  # somebody waits in each
        found = self.best(asking)
        if found is None or found[0].candidate.num_waiting:
            return None
        candidate = found[0].candidate
        return None if _is_short(candidate, asking, candidate.free_blocks + found[1]) else found

    def feeding(self, asking: Asking) -> tuple[OfferedGroup, int] | None:
        """A group that may take a request to its own queue: where its first token comes soonest.

        What is computed before that are the tokens that queue there, and those of the request that
        are not known there.
        """
        urgent = asking.priority > self.least_urgent
        if not self._fed and not urgent:
            return None
        found: tuple[int, _Entry, OfferedGroup, int] | None = None
        looked_at = 0
        for entry in self._order:
            group = self._groups[entry[3]]
            if entry[3] not in self._fed and not (urgent and _comes_first(group, asking)):
                continue
            candidate, known = group.candidate, _num_known(group, asking)
            before = candidate.ledger.queued_tokens + candidate.bound_tokens
            before += asking.tokens - known * candidate.ledger.block_size
            if found is None or (before, entry) < found[:2]:
                found = before, entry, group, known
            looked_at += 1
            if looked_at == _LOOKED_AT:
                break
        return None if found is None else found[2:]

    def _note_yielding(self, group_id: str, priority: int) -> None:
        before = self._yielding.pop(group_id, _NOBODY)
        if before != _NOBODY:
            del self._priorities[bisect_left(self._priorities, before)]
        if priority != _NOBODY:
            self._yielding[group_id] = priority
            insort(self._priorities, priority)

    def check(self) -> None:
        """Prove that the order is that of the groups as they stand."""
        entries = []
        for group_id, group in self._groups.items():
            one = group.candidate
            running = one.ledger.requests.running
            entries.append((one.num_waiting, -one.free_blocks, running, group_id))
            if self._yielding.get(group_id, _NOBODY) != _least_urgent(one):
                raise AssertionError(f"it is not known who yields in {group_id}")
            if (one.num_waiting < group.lead) is not (group_id in self._fed):
                raise AssertionError(f"it is not known whether {group_id} may be fed")
        if sorted(entries) != self._order:
            raise AssertionError("groups are out of order")
        if sorted(self._yielding.values()) != self._priorities:
            raise AssertionError("priorities are not those of the groups")
        if sum(entry[0] for entry in entries) != self.num_waiting:
            raise AssertionError(f"{self.num_waiting} are said to wait in {entries}")


def _num_known(group: OfferedGroup, asking: Asking) -> int:
    if not asking.block_keys or asking.block_size != group.candidate.ledger.block_size:
        return 0
    return group.prefix.num_known(asking.block_keys)


def _is_short(candidate: Candidate, asking: Asking, free: int) -> bool:
    tokens = free * candidate.ledger.block_size
    return asking.tokens > tokens or asking.places > candidate.places_left


def _comes_first(group: OfferedGroup, asking: Asking) -> bool:
    """Whether all who wait in a group are less urgent, but those that were bound since."""
    standing = group.candidate.standing
    waiting = standing.waiting if standing is not None else None
    if waiting is None or waiting.priority >= asking.priority:
        return False
    return group.candidate.bound_waiting < group.lead


def _least_urgent(candidate: Candidate) -> int:
    standing = candidate.standing
    if standing is None:
        return _NOBODY
    least = standing.yielding[0].priority if standing.yielding else _NOBODY
    return min(least, standing.waiting.priority) if standing.waiting is not None else least
