"""Requests of one model that wait until some group can start them soon, and whose turn it is.

By priority; within one by tenants' fair shares; of one tenant by age. A queue that is full sheds
the least urgent: of those the tenant with the most in it loses its youngest, so that nobody who
sends more takes the places of others. Heaps throughout: nothing walks over all who wait but
`place_of`, which is for people who ask. Knows no groups. Units: tokens; seconds on the caller's
clock.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable
from itertools import count
from math import inf
from typing import Generic, TypeVar

from blockyard.scheduler.asking import Asking
from blockyard.scheduler.fairness import TenantCounters

__all__ = ["GlobalQueue"]

_MANY_LINES = 64
"""Priorities that are remembered before those with nobody waiting are dropped."""
_SMALLEST_SWEEP = 64

Waiter = TypeVar("Waiter", bound=Asking)


class _Tenant(Generic[Waiter]):
    """One tenant's in one line, from both ends; those that have left stay until they surface."""

    __slots__ = ("living", "oldest", "youngest")

    def __init__(self) -> None:
        self.living = 0
        self.oldest: list[tuple[float, int, Waiter]] = []
        self.youngest: list[tuple[float, int, Waiter]] = []

    def push(self, asking: Waiter) -> bool:
        """Add one; whether it is now the oldest."""
        self.living += 1
        if len(self.oldest) + len(self.youngest) > 4 * self.living + _SMALLEST_SWEEP:
            for heap in (self.oldest, self.youngest):
                heap[:] = [entry for entry in heap if entry[2].waits]
                heapq.heapify(heap)
        heapq.heappush(self.oldest, (asking.arrived_at, asking.number, asking))
        heapq.heappush(self.youngest, (-asking.arrived_at, -asking.number, asking))
        return self.oldest[0][2] is asking


def _top(heap: list[tuple[float, int, Waiter]]) -> tuple[float, int, Waiter]:
    """The first that still waits, of a tenant that has one."""
    while not heap[0][2].waits:
        heapq.heappop(heap)
    return heap[0]


class _Line(Generic[Waiter]):
    """Those of one priority."""

    def __init__(self, since: float) -> None:
        self._since = since
        self.counters = TenantCounters()
        self.tenants: dict[str, _Tenant[Waiter]] = {}
        self.living = 0
        self.tokens = 0
        # Both with entries that are too early or too large at worst: put right when they surface.
        self._turns: list[tuple[int, float, int, str]] = []
        self._crowds: list[tuple[int, str]] = []

    def push(self, asking: Waiter) -> None:
        name = asking.tenant
        if asking.arrived_at >= self._since:
            first = self.head() if self.tenants and name not in self.tenants else None
            least = first.tenant if first is not None else None
            self.counters.arrive(name, self.tenants.keys(), least)
        tenant = self.tenants.setdefault(name, _Tenant())
        if tenant.push(asking):
            self._queue_up(name, asking)
        self.living += 1
        self.tokens += asking.tokens
        if len(self._crowds) > 2 * len(self.tenants) + _SMALLEST_SWEEP:
            self._crowds = [(-each.living, other) for other, each in self.tenants.items()]
            heapq.heapify(self._crowds)
        else:
            heapq.heappush(self._crowds, (-tenant.living, name))

    def leave(self, asking: Waiter) -> None:
        self.living -= 1
        self.tokens -= asking.tokens
        tenant = self.tenants[asking.tenant]
        tenant.living -= 1
        if not tenant.living:
            del self.tenants[asking.tenant]
            self.counters.left(asking.tenant)

    def head(self) -> Waiter:
        """Whose turn it is, of a line with somebody in it."""
        while True:
            top = self._turns[0]
            tenant = self.tenants.get(top[3])
            if tenant is None:
                heapq.heappop(self._turns)
                continue
            arrived_at, number, asking = _top(tenant.oldest)
            true = (self.counters.charged(top[3]), arrived_at, number, top[3])
            if top == true:
                return asking
            heapq.heapreplace(self._turns, true)

    def largest(self) -> str:
        """The tenant with the most waiting, of a line with somebody in it."""
        while True:
            crowd, name = self._crowds[0]
            tenant = self.tenants.get(name)
            if tenant is None:
                heapq.heappop(self._crowds)
            elif tenant.living == -crowd:
                return name
            else:
                heapq.heapreplace(self._crowds, (-tenant.living, name))

    def _queue_up(self, name: str, oldest: Waiter) -> None:
        if len(self._turns) > 2 * len(self.tenants) + _SMALLEST_SWEEP:
            charged = self.counters.charged
            self._turns = [
                (charged(other), *_top(each.oldest)[:2], other)
                for other, each in self.tenants.items()
            ]
            heapq.heapify(self._turns)
        else:
            entry = (self.counters.charged(name), oldest.arrived_at, oldest.number, name)
            heapq.heappush(self._turns, entry)


class GlobalQueue(Generic[Waiter]):
    """Those of one model.

    Who came before `since` has waited elsewhere: its tenant keeps what it is charged, and is not
    lifted to those who happen to ask here before it.
    """

    def __init__(self, since: float = -inf) -> None:
        self._since = since
        self._lines: dict[int, _Line[Waiter]] = {}
        # Lines with somebody in them, the most urgent first: their priorities, negated.
        self._ranks: list[int] = []
        self._len = 0
        self._numbers = count(1)
        self._due: list[tuple[float, int, Waiter]] = []

    def __len__(self) -> int:
        """So many wait."""
        return self._len

    @property
    def num_tokens(self) -> int:
        """Tokens known of all who wait."""
        return sum(self._lines[-rank].tokens for rank in self._ranks)

    def tokens_before(self, priority: int) -> int:
        """Tokens of those that a newcomer of a priority would wait for, at the most."""
        urgent = self._ranks[: bisect_left(self._ranks, -priority + 1)]
        return sum(self._lines[-rank].tokens for rank in urgent)

    def pass_by(self, asking: Waiter) -> None:
        """One need not wait, for nobody does: its tenant's share is counted all the same."""
        counters = self._line(asking.priority).counters
        counters.arrive(asking.tenant, ())
        counters.left(asking.tenant)

    def push(self, asking: Waiter, due_at: float | None = None) -> None:
        """One waits from now on; `overdue` looks at it again at `due_at`."""
        if asking.waits:
            raise ValueError(f"request {asking.request_id!r} is in the queue already")
        asking.number, asking.waits = next(self._numbers), True
        line = self._line(asking.priority)
        if not line.living:
            insort(self._ranks, -asking.priority)
        line.push(asking)
        self._len += 1
        if due_at is not None:
            if len(self._due) > 2 * self._len + _SMALLEST_SWEEP:
                self._due = [entry for entry in self._due if entry[2].waits]
                heapq.heapify(self._due)
            heapq.heappush(self._due, (due_at, asking.number, asking))

    def head(self) -> Waiter | None:
        """Whose turn it is, left in place; None when nobody waits."""
        return self._lines[-self._ranks[0]].head() if self._ranks else None

    def remove(self, asking: Waiter) -> None:
        """One waits no longer: it has a group, its client has left, or it was refused."""
        if not asking.waits:
            raise ValueError(f"request {asking.request_id!r} is not in the queue")
        asking.waits = False
        line = self._lines[asking.priority]
        line.leave(asking)
        self._len -= 1
        if not line.living:
            del self._ranks[bisect_left(self._ranks, -asking.priority)]

    def charge(self, priority: int, tenant: str, prefill_tokens: int, decode_tokens: int) -> None:
        """Charge a tenant for what is computed for requests of a priority."""
        line = self._lines.get(priority)
        if line is not None and line.counters.contended:
            line.counters.charge(tenant, prefill_tokens, decode_tokens)

    def take_over(self, priority: int, tenant: str, tokens: int) -> None:
        """Charge a tenant for what others have bound, whoever else is known yet."""
        self._line(priority).counters.charge(tenant, tokens, 0)

    def sheds(self, newcomer: Waiter) -> Waiter:
        """Who must go so that a newcomer has room in a queue that is full; perhaps itself."""
        if not self._ranks or newcomer.priority < -self._ranks[-1]:
            return newcomer
        line = self._lines[-self._ranks[-1]]
        name = line.largest()
        if newcomer.priority == -self._ranks[-1]:
            own = line.tenants.get(newcomer.tenant)
            if (own.living if own is not None else 0) + 1 >= line.tenants[name].living:
                return newcomer
        return _top(line.tenants[name].youngest)[2]

    def overdue(self, now: float, due_at: Callable[[Waiter], float]) -> list[Waiter]:
        """Those that it is too late for; `due_at` says anew from when on it is."""
        found: list[Waiter] = []
        while self._due and self._due[0][0] <= now:
            _, number, asking = heapq.heappop(self._due)
            if not asking.waits:
                continue
            due = due_at(asking)
            if due <= now:
                found.append(asking)
            else:
                heapq.heappush(self._due, (due, number, asking))
        return found

    def oldest_at(self) -> float | None:
        """When the one that waits longest had come; None when nobody waits."""
        tenants = (each for rank in self._ranks for each in self._lines[-rank].tenants.values())
        return min((_top(tenant.oldest)[0] for tenant in tenants), default=None)

    def place_of(self, asking: Waiter) -> int:
        """How many are served before one that waits, about: tenants taking turns one by one."""
        line = self._lines[asking.priority]
        age = asking.arrived_at, asking.number
        own = sum(
            1 for at, number, other in line.tenants[asking.tenant].oldest
            if other.waits and (at, number) < age
        )  # fmt: skip
        others = sum(
            min(tenant.living, own + 1)
            for name, tenant in line.tenants.items()
            if name != asking.tenant
        )
        urgent = self._ranks[: bisect_left(self._ranks, -asking.priority)]
        return own + others + sum(self._lines[-rank].living for rank in urgent)

    def check(self) -> None:
        """Prove that counts are those of the living, and that the head is a living one."""
        living = 0
        for rank in self._ranks:
            line = self._lines[-rank]
            waiting = [e[2] for t in line.tenants.values() for e in t.oldest if e[2].waits]
            if not waiting or len(waiting) != line.living:
                raise AssertionError(f"{len(waiting)} wait in a line that counts {line.living}")
            if sum(asking.tokens for asking in waiting) != line.tokens:
                raise AssertionError("a line's tokens are not those of who waits in it")
            if not line.head().waits:
                raise AssertionError("it is the turn of one that has left")
            living += line.living
        if living != self._len or self._ranks != sorted(set(self._ranks)):
            raise AssertionError(f"{living} wait in lines, {self._len} are counted")

    def _line(self, priority: int) -> _Line[Waiter]:
        line = self._lines.get(priority)
        if line is None:
            if len(self._lines) >= _MANY_LINES:
                self._lines = {at: each for at, each in self._lines.items() if each.living}
            line = self._lines[priority] = _Line(self._since)
        return line
