"""The oracle of the live shadow: it knows final lengths because it looks back.

Arrivals and endings go into a log. An arrival is played once its request has ended, in the order
in which everything happened, so what is reported is as old as the oldest request not yet decided.
Tokens between first and last are taken as evenly spread. Units: tokens, steps, seconds.
"""

from collections import deque
from typing import NamedTuple

from blockyard.scheduler.contiguous.shadow_report import PolicyReport
from blockyard.scheduler.contiguous.shadow_server import ShadowRequest, ShadowServer

__all__ = ["HindsightServer"]

_LONGEST_LOG = 65_536
"""Events kept at most; beyond, the oldest request is taken to use all it was allowed."""


class _Event(NamedTuple):
    request: ShadowRequest
    arrives: bool
    step: int
    at: float


class HindsightServer:
    """`exact` over `capacity` slots, fed with what happens and played later."""

    def __init__(self, capacity: int, limit: int, longest_log: int = _LONGEST_LOG) -> None:
        self._server = ShadowServer("exact", capacity, limit, self._held, self._final)
        self._log: deque[_Event] = deque()
        self._longest_log = longest_log
        # Requests that were played before they ended: by what they were allowed.
        self._guessed: set[str] = set()
        self._step = 0

    def arrive(self, request: ShadowRequest, step: int, now: float) -> None:
        """Note an arrival."""
        self._log.append(_Event(request, True, step, now))

    def end(self, request: ShadowRequest, step: int, now: float) -> None:
        """Note an ending; `request.end_step` is set already."""
        self._log.append(_Event(request, False, step, now))

    def catch_up(self, most_events: int, step: int) -> None:
        """Play events that are decided, but not more than so many; `step` is the present one."""
        for _ in range(most_events):
            if not self._log:
                self._step = step
                return
            request, arrives, event_step, at = self._log[0]
            self._step = event_step
            if arrives:
                if request.end_step is None:
                    if len(self._log) <= self._longest_log:
                        return
                    self._guessed.add(request.request_id)
                self._log.popleft()
                self._server.arrive(request, at)
            else:
                self._log.popleft()
                self._server.end(request.request_id, at)
                self._guessed.discard(request.request_id)

    def report(self, now: float) -> PolicyReport:
        """Counts at the moment that has been played up to."""
        return self._server.report(now - self._log[0].at if self._log else 0.0)

    def check(self) -> None:
        """Prove the server's books."""
        self._server.check()

    def _final(self, request: ShadowRequest) -> int:
        return request.most if request.request_id in self._guessed else request.held

    def _held(self, request: ShadowRequest) -> int:
        first, last = request.first_step, request.end_step
        if first is None or self._step < first:
            return request.prompt
        if last is None:  # guessed: what it holds by now is all that is known
            return request.held
        passed = min(self._step, last) - first
        grown = request.held - request.prompt
        return request.prompt + (grown * passed // (last - first) if last > first else grown)
