"""Requests that wait for a place in the batch, and whose turn it is.

The highest priority first; within it the tenant that was charged least, then the oldest. A parked
request keeps its arrival number and comes back before all younger ones of its priority, whoever
sent them. With one tenant that is: by priority, then by age. Knows urgency, tenant and identity,
nothing of blocks or budgets. It is not the turn of one that is held, see `searches.py`.

What law 4 means with tenants: those who never held a place take turns, not by age alone, so the
oldest of a priority may wait while another tenant catches up. It waits for a bounded time: each
request that goes first is charged to its tenant, whose turn is over when it has caught up. Once it
has held a place, age alone counts: parked, it is next; running, it yields to nobody younger.
"""

import heapq
from bisect import insort
from collections import deque

from blockyard.scheduler.request import Request, RequestState
from blockyard.scheduler.tenant_line import TenantLine

__all__ = ["WaitingQueue"]

_SMALLEST_REBUILD = 64
_MANY_LINES = 64
"""Priorities that are remembered before those with nobody waiting are dropped."""


class WaitingQueue:
    """Heaps with membership: push and pop in O(log n), removal by id in O(1).

    A removed request leaves its heap entry behind; stale entries are skipped when they surface
    and swept out when they outnumber the living.
    """

    def __init__(self) -> None:
        self._members: dict[tuple[str, int], Request] = {}
        self._lines: dict[int, TenantLine] = {}
        self._ranks: list[int] = []
        self._num_parked = 0
        self._num_held = 0
        self._num_entries = 0
        self._newest = -1
        # Whose turn it is, once it was asked, until anything changes.
        self._head: Request | None = None

    def __len__(self) -> int:
        """Requests that wait or are parked."""
        return len(self._members)

    @property
    def num_parked(self) -> int:
        """Requests that held a place before and lost it."""
        return self._num_parked

    @property
    def num_waiting(self) -> int:
        """Requests that never held a place."""
        return len(self._members) - self._num_parked

    @property
    def num_tokens(self) -> int:
        """Tokens known of all who wait or are parked."""
        return sum(line.num_tokens for line in self._lines.values())

    @property
    def num_entries(self) -> int:
        """Heap entries, stale ones included."""
        return self._num_entries

    @property
    def contended(self) -> bool:
        """Whether `charge` can matter: some priority has more than one tenant."""
        return any(line.counters.contended for line in self._lines.values())

    def charge(self, request: Request, prefill_tokens: int, decode_tokens: int) -> None:
        """Charge a request's tenant for tokens that are computed for it."""
        spec = request.spec
        self.charge_tenant(spec.priority, spec.tenant, prefill_tokens, decode_tokens)

    def charge_tenant(
        self, priority: int, tenant: str, prefill_tokens: int, decode_tokens: int
    ) -> None:
        """Charge a tenant for tokens that are computed for requests of a priority."""
        line = self._lines.get(-priority)
        if line is not None and line.counters.contended:
            line.counters.charge(tenant, prefill_tokens, decode_tokens)
            self._head = None

    def charged(self, request: Request) -> int:
        """What the request's tenant has been charged, in its priority."""
        line = self._lines.get(-request.spec.priority)
        return line.counters.charged(request.spec.tenant) if line is not None else 0

    def push(self, request: Request) -> None:
        """Add a waiting or parked request that is not in the queue.

        One that is younger than all before it has just arrived; another has been here already, and
        its tenant is not lifted anew.
        """
        if request.member in self._members:
            raise ValueError(f"request {request.request_id!r} is in the queue already")
        line = self._line(-request.spec.priority)
        if request.sequence > self._newest:
            self._newest = request.sequence
            line.counters.arrive(request.spec.tenant, line.num_queued.keys())
        self._head = None
        self._members[request.member] = request
        self._num_parked += request.state is RequestState.PARKED
        self._num_held += request.held
        if not request.held:
            self._num_entries += 1
            line.push(request)

    def head(self) -> Request | None:
        """Whose turn it is, left in place; None when nobody waits."""
        if self._head is None and len(self._members) > self._num_held:
            if self._num_entries == 1 == len(self._members):
                self._head = next(iter(self._members.values()))
            else:
                self._head = self._head_of(self._first_line())
        return self._head

    def pop(self) -> Request:
        """Take out whose turn it is.

        Raises:
            IndexError: nobody waits.
        """
        request = self._head or self.head()
        if request is None:
            raise IndexError("nobody waits")
        line = self._lines[-request.spec.priority]
        if self._num_entries == 1 == len(self._members):
            line.drop_entries()
        else:
            line.take(request)
        self._num_entries -= 1
        self._forget(request, line)
        return request

    def remove(self, request_id: str, choice: int = 0) -> Request | None:
        """Take a request out by its id; None when it is not in the queue."""
        request = self._members.get((request_id, choice))
        if request is None:
            return None
        self._forget(request, self._lines[-request.spec.priority])
        if self._num_entries > 2 * len(self._members) + _SMALLEST_REBUILD:
            self._rebuild()
        return request

    def members(self) -> tuple[Request, ...]:
        """Everyone in the queue, in no particular order."""
        return tuple(self._members.values())

    def ordered(self) -> list[Request]:
        """Everyone in the queue, in the order of service if nothing more were charged.

        Sorts the whole queue: for people who ask, not for steps.
        """
        order: list[Request] = []
        for rank in self._ranks:
            members = [m for m in self._members.values() if -m.spec.priority == rank]
            members.sort()
            parked = deque(m for m in members if m.state is RequestState.PARKED)
            waiting = [m for m in members if m.state is RequestState.WAITING]
            for request in sorted(waiting, key=lambda m: (self.charged(m), m.urgency)):
                while parked and parked[0] < request:
                    order.append(parked.popleft())
                order.append(request)
            order.extend(parked)
        return order

    def tokens_ahead(self, priority: int) -> int:
        """Tokens known of all who wait with this priority or a higher one."""
        return sum(self._lines[rank].num_tokens for rank in self._ranks if rank <= -priority)

    def check(self) -> None:
        """Prove that each member is queued once, in a state that waits, and counted right."""
        queued_up = [request for line in self._lines.values() for request in line.entries()]
        if len(queued_up) != self._num_entries:
            raise AssertionError(f"{self._num_entries} entries are counted, {len(queued_up)} are")
        entries = set(map(id, queued_up))
        queued: dict[tuple[int, str], int] = {}
        for request in self._members.values():
            # An entry more than one can only be a stale one of the same request; it is skipped
            # as soon as the request is taken out, so only absence is a fault.
            if not request.held and id(request) not in entries:
                raise AssertionError(f"request {request.request_id!r} has no place in the queue")
            if request.state not in (RequestState.WAITING, RequestState.PARKED):
                raise AssertionError(
                    f"request {request.request_id!r} is in the queue but {request.state.value}"
                )
            if not request.held:
                key = (-request.spec.priority, request.spec.tenant)
                queued[key] = queued.get(key, 0) + 1
        for rank, line in self._lines.items():
            turns = [m for m in self._members.values() if m.urgency[0] == rank and not m.held]
            tokens = sum(len(m.tokens) for m in turns)
            if tokens != line.num_tokens:
                raise AssertionError(
                    f"{line.num_tokens} tokens are counted to wait, it is {tokens}"
                )
        parked = sum(m.state is RequestState.PARKED for m in self._members.values())
        if parked != self._num_parked:
            raise AssertionError(f"{self._num_parked} requests counted as parked, {parked} are")
        counted = {
            (rank, tenant): count
            for rank, line in self._lines.items()
            for tenant, count in line.num_queued.items()
        }
        if counted != queued:
            raise AssertionError(f"tenants are counted to have {counted} queued, it is {queued}")
        head, self._head = self._head, None
        if head is not None and head is not self.head():
            raise AssertionError(f"it is no longer the turn of request {head.request_id!r}")

    def _line(self, rank: int) -> TenantLine:
        line = self._lines.get(rank)
        if line is None:
            if len(self._lines) >= _MANY_LINES:
                for idle in [r for r, known in self._lines.items() if not known.num_queued]:
                    self._num_entries -= len(self._lines.pop(idle).entries())
                self._ranks = sorted(self._lines)
            line = self._lines[rank] = TenantLine()
            insort(self._ranks, rank)
        return line

    def _first_line(self) -> TenantLine:
        """The line of the highest priority that has a member; there must be one."""
        return next(line for rank in self._ranks if (line := self._lines[rank]).num_queued)

    def _head_of(self, line: TenantLine) -> Request:
        """The next of a line that is not empty: by turn, unless somebody older is parked."""
        parked = self._living(line.parked)
        waiting: Request | None = None
        while waiting is None and (tenant := line.turn()) is not None:
            waiting = self._living(line.waiting[tenant])
            if waiting is None:
                del line.waiting[tenant]
            elif not line.is_turn_of(tenant, waiting.sequence):
                waiting = None  # it was charged since, or its oldest has left: it queues up anew
        if parked is not None and (waiting is None or parked < waiting):
            return parked
        if waiting is None:
            raise AssertionError("a line that counts requests holds none")
        return waiting

    def _living(self, heap: list[tuple[int, Request]]) -> Request | None:
        """The oldest member in a heap, once stale entries are off its top."""
        while heap:
            request = heap[0][1]
            if self._members.get(request.member) is request and not request.held:
                return request
            heapq.heappop(heap)
            self._num_entries -= 1
        return None

    def _forget(self, request: Request, line: TenantLine) -> None:
        self._head = None
        del self._members[request.member]
        self._num_parked -= request.state is RequestState.PARKED
        self._num_held -= request.held
        if not request.held:
            line.leave(request)

    def _rebuild(self) -> None:
        """Make all heaps anew from the members."""
        for line in self._lines.values():
            line.clear()
        for request in self._members.values():
            if not request.held:
                self._lines[-request.spec.priority].push(request)
        self._num_entries = len(self._members) - self._num_held
