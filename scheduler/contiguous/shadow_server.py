"""One contiguous server beside the live pool: its allocator and the queue in front of it.

First come, first served, as real servers do: who finds no room waits, and everybody behind it
waits too. A request whose piece is full and finds no larger one loses its piece and stands first
in the queue. Does not know how many tokens a request holds: it asks. Units: token slots, seconds.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from blockyard.scheduler.contiguous.allocators import make_allocator
from blockyard.scheduler.contiguous.shadow_report import PolicyReport

__all__ = ["NEVER", "ShadowRequest", "ShadowServer"]

NEVER = 2**62
"""More tokens than there are."""


@dataclass(slots=True, eq=False)
class ShadowRequest:
    """A live request as the shadow knows it.

    Attributes:
        prompt: tokens in its prompt.
        most: the most slots it can ever fill.
        tokens: slots it fills by now, once it has produced a token; one less before.
        alarm: tokens above which more must be done than counting.
        first_step, end_step: when it produced its first token, and when it ended.
    """

    request_id: str
    prompt: int
    most: int
    tokens: int
    alarm: int = -1
    first_step: int | None = None
    end_step: int | None = None

    @property
    def held(self) -> int:
        """Slots it fills by now."""
        return min(max(self.tokens, self.prompt), self.most)


class ShadowServer:
    """What one policy would do with the requests it is told of.

    `held_of` tells how many tokens a request holds, `final_of` with how many it will end, as far
    as this policy may know.
    """

    def __init__(
        self,
        policy: str,
        capacity: int,
        limit: int,
        held_of: Callable[[ShadowRequest], int],
        final_of: Callable[[ShadowRequest], int],
    ) -> None:
        self.allocator = make_allocator(policy, capacity, limit)
        self._held_of = held_of
        self._final_of = final_of
        # How many of a running request's slots the allocator has booked as filled.
        self._booked: dict[str, int] = {}
        self._running: dict[str, ShadowRequest] = {}
        self._queue: OrderedDict[str, ShadowRequest] = OrderedDict()
        self._refused_head: str | None = None
        self._peak = 0
        self._delayed = 0
        self._never_started = 0
        self._evictions = 0
        self._first_refusal_at: float | None = None
        self._first_fragmented_at: float | None = None

    def arrive(self, request: ShadowRequest, now: float) -> None:
        """A request joins the end of the queue; it starts at once if there is room."""
        self._queue[request.request_id] = request
        self._admit(now)
        self._delayed += request.request_id in self._queue

    def outgrow(self, request: ShadowRequest, now: float) -> None:
        """A running request holds more than its piece: it moves to a larger one, or loses it."""
        request_id = request.request_id
        if request_id not in self._running:
            return
        held = self._held_of(request)
        if not self.allocator.fits(held, self._final_of(request)):
            self._before_refusal(held, request)
        if self.allocator.grow(request_id, held - self._booked[request_id]):
            self._booked[request_id] = held
        else:
            self._note_refusal(now)
            self._leave(request_id)
            self._evictions += 1
            self._queue[request_id] = request
            self._queue.move_to_end(request_id, last=False)
        self._admit(now)

    def room(self, request: ShadowRequest) -> int:
        """Tokens with which a running request's piece is full; `NEVER` for whom it cannot matter.

        Asked after `arrive` and `outgrow`: only `pow2` pieces fill up before the request ends.
        """
        booked = self._booked.get(request.request_id)
        if booked is None:
            return NEVER
        final = self._final_of(request)
        size = self.allocator.reservation(booked, final)
        return size if size < final else NEVER

    def end(self, request_id: str, now: float) -> None:
        """A request has ended or its client has left."""
        if self._queue.pop(request_id, None) is not None:
            self._never_started += 1
            if self._refused_head == request_id:
                self._refused_head = None
        else:
            self._leave(request_id)
        self._admit(now)

    def report(self, behind_seconds: float = 0.0) -> PolicyReport:
        """Counts at this moment; walks the running requests."""
        self._book_all()
        return PolicyReport(
            books=self.allocator.books(),
            queued=len(self._queue),
            peak_running=self._peak,
            delayed=self._delayed,
            never_started=self._never_started,
            evictions=self._evictions,
            first_refusal_seconds=self._first_refusal_at,
            first_fragmented_seconds=self._first_fragmented_at,
            behind_seconds=behind_seconds,
        )

    def check(self) -> None:
        """Prove: the allocator's books, and that everybody either runs or waits."""
        self.allocator.check()
        if self._running.keys() != self._booked.keys() or len(self._running) != len(self.allocator):
            raise AssertionError("the running requests are not those that hold a piece")
        both = self._running.keys() & self._queue.keys()
        if both:
            raise AssertionError(f"{min(both)} runs and waits")

    def _leave(self, request_id: str) -> None:
        self.allocator.free(request_id)
        del self._running[request_id], self._booked[request_id]

    def _admit(self, now: float) -> None:
        while self._queue:
            request_id, request = next(iter(self._queue.items()))
            held, final = self._held_of(request), self._final_of(request)
            if not self.allocator.fits(held, final):
                # One refusal for each time that a request comes to the head and finds no room.
                if self._refused_head != request_id:
                    self._before_refusal(held, request)
                    self.allocator.allocate(request_id, held, final)
                    self._note_refusal(now)
                    self._refused_head = request_id
                return
            self.allocator.allocate(request_id, held, final)
            del self._queue[request_id]
            self._refused_head = None
            self._running[request_id] = request
            self._booked[request_id] = held
            request.alarm = -1  # it has a piece now, which may fill up
            self._peak = max(self._peak, len(self._running))

    def _before_refusal(self, held: int, request: ShadowRequest) -> None:
        """Bring the books up to date if what comes may be a refusal whose figures are kept."""
        books = self.allocator.books()
        needed = self.allocator.reservation(held, self._final_of(request))
        is_first = books.first_refusal is None
        if is_first or (books.first_fragmented is None and books.free >= needed):
            self._book_all(except_for=request.request_id)

    def _note_refusal(self, now: float) -> None:
        books = self.allocator.books()
        if self._first_refusal_at is None and books.first_refusal is not None:
            self._first_refusal_at = now
        if self._first_fragmented_at is None and books.first_fragmented is not None:
            self._first_fragmented_at = now

    def _book_all(self, except_for: str | None = None) -> None:
        for request_id, request in self._running.items():
            held = self._held_of(request)
            booked = self._booked[request_id]
            if held > booked and request_id != except_for:
                self.allocator.grow(request_id, held - booked)
                self._booked[request_id] = held
