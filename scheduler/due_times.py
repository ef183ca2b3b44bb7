"""Who is to be looked at when. Time is any count that only grows; knows nothing of what is due.

Setting, dropping and taking cost by the requests they name, not by how many wait.
"""

from collections.abc import Iterable

from blockyard.scheduler.request import Request

__all__ = ["DueTimes"]


class DueTimes:
    """Requests by the time at which they are due, each at most once."""

    def __init__(self) -> None:
        self._due: dict[int, dict[Request, None]] = {}

    def __len__(self) -> int:
        """Requests that are due at some time."""
        return sum(map(len, self._due.values()))

    def is_due(self, request: Request, at: int) -> bool:
        """Whether a request will be told of at `at`."""
        return request in self._due.get(at, ())

    def put(self, request: Request, at: int) -> None:
        """Be told of a request at `at`."""
        due = self._due.get(at)
        if due is None:
            self._due[at] = {request: None}
        else:
            due[request] = None

    def put_all(self, requests: Iterable[Request], at: int) -> None:
        """Be told of all of them at `at`."""
        self._due.setdefault(at, {}).update(dict.fromkeys(requests))

    def drop(self, request: Request, at: int) -> None:
        """Be told of it no more; nothing to do when it was taken already."""
        due = self._due.get(at)
        if due is not None:
            due.pop(request, None)
            if not due:
                del self._due[at]

    def take(self, at: int) -> list[Request]:
        """Who is due at `at`, in the order in which they were put there; each is told of once."""
        return list(self._due.pop(at, ()))

    def take_until(self, last: int) -> list[Request]:
        """Who is due at `last` or was before. Looks at all times, so it is not for every step."""
        times = sorted(at for at in self._due if at <= last)
        return [request for at in times for request in self._due.pop(at)]
