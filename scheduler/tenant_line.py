"""Those of one priority that wait: parked ones by age, the others by their tenant's turn.

Keeps entries of members that have left until they surface; who is a member is known to the queue
above. Knows neither blocks nor budgets.
"""

import heapq

from blockyard.scheduler.fairness import TenantCounters
from blockyard.scheduler.request import Request, RequestState

__all__ = ["TenantLine"]

_SMALLEST_REBUILD = 64


class TenantLine:
    """A heap for each tenant, one for the parked, and one of the tenants' turns."""

    def __init__(self) -> None:
        self.counters = TenantCounters()
        self.num_queued: dict[str, int] = {}
        """Living members of each tenant, parked ones too; a tenant without any is absent."""
        self.num_tokens = 0
        """Tokens known of all living members."""
        self.parked: list[tuple[int, Request]] = []
        self.waiting: dict[str, list[tuple[int, Request]]] = {}
        # Whose turn it is: (charged, oldest, tenant). A tenant with anybody in `waiting` has an
        # entry that is no later than its true turn, since charges only grow; what is out of date
        # is put right when it surfaces.
        self._turns: list[tuple[int, int, str]] = []

    def push(self, request: Request) -> None:
        """Add a member."""
        self.num_tokens += len(request.tokens)
        tenant = request.spec.tenant
        self.num_queued[tenant] = self.num_queued.get(tenant, 0) + 1
        entry = (request.sequence, request)
        if request.state is RequestState.PARKED:
            heapq.heappush(self.parked, entry)
            return
        heap = self.waiting.setdefault(tenant, [])
        heapq.heappush(heap, entry)
        if heap[0] is entry:
            self._queue_up(tenant, request.sequence)

    def take(self, request: Request) -> None:
        """Take a request off the top of the heap that it was found on."""
        if request.state is RequestState.PARKED:
            heapq.heappop(self.parked)
            return
        tenant = request.spec.tenant
        heap = self.waiting[tenant]
        heapq.heappop(heap)
        heapq.heappop(self._turns)
        if heap:
            self._queue_up(tenant, heap[0][0])
        else:
            del self.waiting[tenant]

    def leave(self, request: Request) -> None:
        """One living member less."""
        tenant = request.spec.tenant
        self.num_tokens -= len(request.tokens)
        self.num_queued[tenant] -= 1
        if not self.num_queued[tenant]:
            del self.num_queued[tenant]
            self.counters.left(tenant)

    def turn(self) -> str | None:
        """The tenant on top of the turns, which may be out of date; None when there is none."""
        while self._turns and self._turns[0][2] not in self.waiting:
            heapq.heappop(self._turns)
        return self._turns[0][2] if self._turns else None

    def is_turn_of(self, tenant: str, oldest: int) -> bool:
        """Whether the top entry is up to date; if not it is queued up where it belongs."""
        true = (self.counters.charged(tenant), oldest, tenant)
        if self._turns[0] == true:
            return True
        heapq.heapreplace(self._turns, true)
        return False

    def entries(self) -> list[Request]:
        """Everybody in a heap, stale ones included."""
        heaps = (self.parked, *self.waiting.values())
        return [request for heap in heaps for _, request in heap]

    def clear(self) -> None:
        """Forget all members, but not what tenants were charged."""
        self.num_queued.clear()
        self.num_tokens = 0
        self.drop_entries()

    def drop_entries(self) -> None:
        """Empty all heaps, of which at most one living member has an entry that is done with."""
        self.parked.clear()
        self.waiting.clear()
        self._turns.clear()

    def _queue_up(self, tenant: str, oldest: int) -> None:
        if len(self._turns) > 2 * len(self.waiting) + _SMALLEST_REBUILD:
            # An entry at the top of a heap that is stale is older than the living: never too late.
            self._turns = [
                (self.counters.charged(name), heap[0][0], name)
                for name, heap in self.waiting.items()
                if heap
            ]
            heapq.heapify(self._turns)
        else:
            heapq.heappush(self._turns, (self.counters.charged(tenant), oldest, tenant))
