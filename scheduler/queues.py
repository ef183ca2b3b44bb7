"""Requests that wait for a place in the batch, most urgent first.

A parked request keeps its arrival number, so it comes back before all younger ones of its
priority without a queue of its own. Knows urgency and identity, nothing of blocks or budgets.
"""

import heapq

from blockyard.scheduler.request import Request, RequestState

__all__ = ["WaitingQueue"]

_SMALLEST_REBUILD = 64


class WaitingQueue:
    """A heap with membership: push and pop in O(log n), removal by id in O(1).

    A removed request leaves its heap entry behind; stale entries are skipped when they surface
    and swept out when they outnumber the living.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Request]] = []
        self._members: dict[str, Request] = {}
        self._num_parked = 0

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

    def push(self, request: Request) -> None:
        """Add a waiting or parked request that is not in the queue."""
        if request.request_id in self._members:
            raise ValueError(f"request {request.request_id!r} is in the queue already")
        self._members[request.request_id] = request
        self._num_parked += request.state is RequestState.PARKED
        heapq.heappush(self._heap, (*request.urgency, request))

    def head(self) -> Request | None:
        """The most urgent request, left in place; None when nobody waits."""
        while self._heap:
            request = self._heap[0][2]
            if self._members.get(request.request_id) is request:
                return request
            heapq.heappop(self._heap)
        return None

    def pop(self) -> Request:
        """Take the most urgent request out.

        Raises:
            IndexError: nobody waits.
        """
        request = self.head()
        if request is None:
            raise IndexError("nobody waits")
        heapq.heappop(self._heap)
        self._forget(request)
        return request

    def remove(self, request_id: str) -> Request | None:
        """Take a request out by its id; None when it is not in the queue."""
        request = self._members.get(request_id)
        if request is None:
            return None
        self._forget(request)
        if len(self._heap) > 2 * len(self._members) + _SMALLEST_REBUILD:
            self._heap = [(*member.urgency, member) for member in self._members.values()]
            heapq.heapify(self._heap)
        return request

    def members(self) -> tuple[Request, ...]:
        """Everyone in the queue, in no particular order."""
        return tuple(self._members.values())

    def check(self) -> None:
        """Prove that each member is queued once, in a state that waits, and counted right."""
        entries = {id(entry[2]) for entry in self._heap}
        for request in self._members.values():
            # An entry more than one can only be a stale one of the same request; it is skipped
            # as soon as the request is taken out, so only absence is a fault.
            if id(request) not in entries:
                raise AssertionError(f"request {request.request_id!r} has no place in the queue")
            if request.state not in (RequestState.WAITING, RequestState.PARKED):
                raise AssertionError(
                    f"request {request.request_id!r} is in the queue but {request.state.value}"
                )
        parked = sum(m.state is RequestState.PARKED for m in self._members.values())
        if parked != self._num_parked:
            raise AssertionError(f"{self._num_parked} requests counted as parked, {parked} are")

    def _forget(self, request: Request) -> None:
        del self._members[request.request_id]
        self._num_parked -= request.state is RequestState.PARKED
