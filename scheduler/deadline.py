"""A client's deadline: who cannot make it is dropped before it takes a place from who can.

Two questions, both answered on the hopeful side, so that nobody is dropped who could have made it:
whether those ahead in the queue alone take longer than the client waits (asked when a request
comes), and whether its own work would, were it to start now (asked at every plan). Where no rate
is measured yet, only a deadline that has passed is one. Units: seconds, tokens.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from blockyard.scheduler.cost_model import CostModel
from blockyard.scheduler.request import Request, RequestState

__all__ = [
    "DeadlineMiss",
    "DeadlineVerdict",
    "DeadlineWatch",
    "due_at",
    "fewest_outputs",
    "judge_deadline",
    "least_tokens",
]

_CERTAINTY = 0.7
"""An estimate counts as this part of itself: a rate may be better tomorrow."""


class DeadlineMiss(StrEnum):
    """Why a deadline cannot be met."""

    PASSED = "passed"
    WORK = "work"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class DeadlineVerdict:
    """A deadline that cannot be met: the time that is left, and the time that it would take."""

    miss: DeadlineMiss
    left_seconds: float
    needed_seconds: float

    @property
    def message(self) -> str:
        """What the client is told."""
        if self.miss is DeadlineMiss.PASSED:
            return "the deadline passed before the request could start; allow more time"
        what = {
            DeadlineMiss.WORK: "its prompt and the fewest tokens asked for take",
            DeadlineMiss.QUEUE: "with the requests ahead of it, it takes",
        }[self.miss]
        return (
            f"the deadline is {max(0.0, self.left_seconds):.3g} s away and {what} about "
            f"{self.needed_seconds:.3g} s; allow more time or send less"
        )


def judge_deadline(
    left_seconds: float,
    own_tokens: int,
    num_outputs: int,
    tokens_ahead: int,
    rates: CostModel,
) -> DeadlineVerdict | None:
    """Why a request cannot be answered in time; None when it may be.

    Args:
        left_seconds: until the deadline.
        own_tokens: tokens that it has still to compute before its first one comes.
        num_outputs: tokens that its answer has at the least.
        tokens_ahead: tokens to compute for those that are served before it.
        rates: as measured now; a rate of 0 is not.
    """
    if left_seconds <= 0:
        return DeadlineVerdict(DeadlineMiss.PASSED, left_seconds, 0.0)
    if not rates.prefill_tokens_per_second:
        return None
    own = _own_seconds(own_tokens, num_outputs, rates)
    if own * _CERTAINTY > left_seconds:
        return DeadlineVerdict(DeadlineMiss.WORK, left_seconds, own)
    both = own + rates.recompute_seconds(tokens_ahead)
    if both * _CERTAINTY > left_seconds:
        return DeadlineVerdict(DeadlineMiss.QUEUE, left_seconds, both)
    return None


def due_at(deadline_at: float, own_tokens: int, num_outputs: int, rates: CostModel) -> float:
    """The moment from which a request's own work would miss its deadline, at these rates."""
    if not rates.prefill_tokens_per_second:
        return deadline_at
    return deadline_at - _CERTAINTY * _own_seconds(own_tokens, num_outputs, rates)


def least_tokens(request: Request) -> int:
    """What a request has to compute until its first token, less what was found of it last."""
    return len(request.tokens) - len(request.path) * request.table.block_size


def fewest_outputs(request: Request) -> int:
    """Tokens that its answer has at the least."""
    return max(1, request.spec.sampling.min_tokens)


class DeadlineWatch:
    """Requests with a deadline that have not started, by the moment at which it is too late.

    Looks only at those whose moment has come: costs nothing for requests without a deadline, and
    little for those with one.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []

    def __len__(self) -> int:
        """Entries, those of requests that have started or left included until they come up."""
        return len(self._heap)

    def add(self, request: Request, rates: CostModel) -> None:
        """Watch a request that has come, if it has a deadline."""
        if request.spec.deadline_seconds is not None:
            due = _due_at(request, len(request.tokens), rates)
            heapq.heappush(self._heap, (due, request.sequence, request))

    def missed(
        self, now: float, rates: CostModel, own_tokens: Callable[[Request], int]
    ) -> list[tuple[Request, DeadlineVerdict]]:
        """Those that could not make it even if they started now; they are watched no longer.

        Args:
            now: on the clock of their arrival.
            rates: as measured now; they may have changed since a request came.
            own_tokens: what a request has still to compute, prefix hits left out.
        """
        missed: list[tuple[Request, DeadlineVerdict]] = []
        put_back: list[tuple[float, int, Request]] = []
        while self._heap and self._heap[0][0] <= now:
            _, sequence, request = heapq.heappop(self._heap)
            # One that has started goes on: what it has computed is paid for.
            if request.state is not RequestState.WAITING or request.started_at is not None:
                continue
            tokens = own_tokens(request)
            left = _deadline_at(request) - now
            verdict = judge_deadline(left, tokens, fewest_outputs(request), 0, rates)
            if verdict is not None:
                missed.append((request, verdict))
            else:
                put_back.append((_due_at(request, tokens, rates), sequence, request))
        for entry in put_back:
            heapq.heappush(self._heap, entry)
        return missed


def _deadline_at(request: Request) -> float:
    seconds = request.spec.deadline_seconds
    if seconds is None:
        raise ValueError(f"request {request.request_id!r} has no deadline")
    return request.arrived_at + seconds


def _due_at(request: Request, own_tokens: int, rates: CostModel) -> float:
    """The moment from which its own work would miss the deadline, at the rates of now.

    Should they get worse meanwhile it is found out a little late, should they get better the
    request is put back.
    """
    return due_at(_deadline_at(request), own_tokens, fewest_outputs(request), rates)


def _own_seconds(own_tokens: int, num_outputs: int, rates: CostModel) -> float:
    """The first token comes with the last step of the prefill; each other takes a step."""
    return rates.recompute_seconds(own_tokens) + (num_outputs - 1) * rates.step_seconds
