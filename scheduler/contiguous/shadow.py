"""What contiguous servers would do with the requests that are live here, and the same memory.

Each policy holds as many of the live requests as it has room for, the rest queue. A request holds
there what it holds here, whenever it was let in: that flatters the contiguous servers, whose
queues would in truth grow and whose requests would end later. Fed with arrivals, updates and
endings; a token costs one addition. Units: token slots, steps, seconds on the caller's clock.
"""

from collections.abc import Iterable

from blockyard.scheduler.contiguous.hindsight import HindsightServer
from blockyard.scheduler.contiguous.shadow_report import PolicyReport
from blockyard.scheduler.contiguous.shadow_server import ShadowRequest, ShadowServer
from blockyard.scheduler.request import RequestUpdate

__all__ = ["ContiguousShadow"]

_EVENTS_A_CALL = 8
"""Of the log that is played looking back: more than come in the long run, so that it keeps up."""
_EVENTS_A_REPORT = 1024


class ContiguousShadow:
    """Three contiguous servers over `capacity` slots, for requests of up to `limit` tokens.

    A server whose memory is smaller than the limit is taken to be started with what fits. `began`
    is the moment from which reports count their seconds.

    Raises:
        ValueError: a number below 1.
    """

    def __init__(self, capacity: int, limit: int, began: float = 0.0) -> None:
        self._limit = min(limit, capacity)
        self._began = began
        self._step = 0
        self._live: dict[str, ShadowRequest] = {}
        self._reserving = ShadowServer("max_seq_len", capacity, self._limit, _held, _most)
        self._moving = ShadowServer("pow2", capacity, self._limit, _held, _most)
        self._oracle = HindsightServer(capacity, self._limit)

    def arrive(
        self, request_id: str, prompt_tokens: int, max_tokens: int | None, now: float
    ) -> None:
        """A request was taken; `max_tokens` of None means as many as fit."""
        if request_id in self._live:
            self.end(request_id, now)
        # The last token is never read back, so it fills no slot.
        allowed = self._limit if max_tokens is None else prompt_tokens + max_tokens - 1
        most = max(1, min(allowed, self._limit))
        request = ShadowRequest(request_id, min(prompt_tokens, most), most, prompt_tokens - 1)
        self._live[request_id] = request
        seconds = now - self._began
        self._reserving.arrive(request, seconds)
        self._moving.arrive(request, seconds)
        self._oracle.arrive(request, self._step, seconds)
        self._oracle.catch_up(_EVENTS_A_CALL, self._step)

    def advance(self, updates: Iterable[RequestUpdate], now: float) -> None:
        """A step has ended with these updates; those of unknown requests are passed over."""
        self._step += 1
        live = self._live
        ended: list[str] = []
        for update in updates:
            request = live.get(update.request_id)
            if request is None:
                continue
            request.tokens += len(update.token_ids)
            if request.tokens > request.alarm:
                self._ring(request, now)
            if update.finish_reason is not None:
                ended.append(update.request_id)
        for request_id in ended:
            self.end(request_id, now)
        self._oracle.catch_up(_EVENTS_A_CALL, self._step)

    def end(self, request_id: str, now: float) -> None:
        """A request has ended or its client has left. Safe to call twice."""
        request = self._live.pop(request_id, None)
        if request is None:
            return
        request.end_step = self._step
        seconds = now - self._began
        self._reserving.end(request_id, seconds)
        self._moving.end(request_id, seconds)
        self._oracle.end(request, self._step, seconds)

    def report(self, now: float) -> tuple[PolicyReport, ...]:
        """Counts of `max_seq_len`, `pow2` and `exact`, in this order; walks what runs there."""
        self._oracle.catch_up(_EVENTS_A_REPORT, self._step)
        return (
            self._reserving.report(),
            self._moving.report(),
            self._oracle.report(now - self._began),
        )

    def check(self) -> None:
        """Prove every server's books."""
        for server in (self._reserving, self._moving, self._oracle):
            server.check()

    def _ring(self, request: ShadowRequest, now: float) -> None:
        """Its first token, or the one that its piece of a power of two does not hold."""
        if request.first_step is None and request.tokens >= request.prompt:
            request.first_step = self._step
        request.alarm = self._moving.room(request)
        if request.tokens > request.alarm:
            self._moving.outgrow(request, now - self._began)
            request.alarm = self._moving.room(request)


def _held(request: ShadowRequest) -> int:
    return request.held


def _most(request: ShadowRequest) -> int:
    return request.most
