"""Requests of one engine as a replay wants them: when they came, how long they were, their keys.

Keeps something only while somebody asks for it: from the first question on, and for a while after
the last. No text and no token leaves it; keys name the full blocks of a prompt. Units: seconds,
tokens.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from blockyard.cluster.books.step_log import StepRecord
from blockyard.scheduler.block_keys import block_keys
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.snapshot import RequestSnapshot

__all__ = ["ArrivalBatch", "ArrivalLog", "ArrivalRecord"]

_LEASE_SECONDS = 60.0
"""After so long without a question nobody records any more."""

_MOST_KEPT = 4096
"""Requests that have ended and were not asked for yet; the oldest go first."""

_MOST_GIVEN = 512
"""Requests in one answer."""


@dataclass(frozen=True, slots=True)
class ArrivalRecord:
    """One answer to one request, told when it has ended. `arrived_at` is seconds since 1970."""

    arrived_at: float
    prompt_tokens: int
    output_tokens: int
    tenant: str
    block_keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ArrivalBatch:
    """What came after a number, the number to ask with next, and how many were lost meanwhile."""

    records: tuple[ArrivalRecord, ...]
    next_number: int
    missed: int
    block_size: int
    steps: tuple[StepRecord, ...] = ()
    """Those that have ended since the last question, whatever its number."""


@dataclass(slots=True)
class _Live:
    """A request that has not ended, and the tokens of each choice so far."""

    spec: RequestSpec
    arrived_at: float
    keys: tuple[bytes, ...]
    tokens: dict[int, int] = field(default_factory=dict)


class ArrivalLog:
    """What one engine was asked for, while somebody records."""

    def __init__(
        self,
        block_size: int,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._block_size = block_size
        self._clock = clock
        self._wall_clock = wall_clock
        self._until = float("-inf")
        self._live: dict[str, _Live] = {}
        self._ended: deque[ArrivalRecord] = deque()
        # Number of the first that is kept; the first of all is 1, for 0 means: from now on.
        self._first = 1

    def submitted(self, spec: RequestSpec) -> None:
        """A request was taken."""
        if self._clock() > self._until:
            self._live.clear()
            return
        keys: tuple[bytes, ...] = ()
        if spec.use_prefix_cache:
            keys = block_keys(spec.prompt_token_ids, self._block_size, spec.extras)
        tokens = dict.fromkeys(range(spec.num_choices), 0)
        self._live[spec.request_id] = _Live(spec, self._wall_clock(), keys, tokens)

    def resumed(self, snapshot: RequestSnapshot) -> None:
        """A request was taken that had produced something elsewhere."""
        self.submitted(snapshot.spec)
        live = self._live.get(snapshot.spec.request_id)
        if live is not None:
            live.tokens = {
                number: len(choice.token_ids)
                for choice in snapshot.choices
                for number in (choice.choice, *choice.begins)
            }

    def stepped(self, updates: Iterable[RequestUpdate]) -> None:
        """A step has brought these updates."""
        if not self._live:
            return
        for update in updates:
            live = self._live.get(update.request_id)
            if live is not None and update.choice in live.tokens:
                live.tokens[update.choice] += len(update.token_ids)
                if update.finish_reason is not None:
                    self._end(live, update.choice)

    def aborted(self, request_id: str, choice: int | None) -> None:
        """A request, or one choice, was ended from outside."""
        live = self._live.get(request_id)
        if live is not None:
            for ended in tuple(live.tokens) if choice is None else (choice,):
                if ended in live.tokens:
                    self._end(live, ended)

    def take(self, after: int) -> ArrivalBatch:
        """What has ended since the answer that gave the number `after`; 0: record from now on."""
        self._until = self._clock() + _LEASE_SECONDS
        end = self._first + len(self._ended)
        begin = min(after, end) if after else end
        missed = max(0, self._first - begin)
        begin = max(begin, self._first)
        # Nobody else reads, so what was read before need not be kept.
        while self._first < begin:
            self._ended.popleft()
            self._first += 1
        records = tuple(self._ended)[:_MOST_GIVEN]
        return ArrivalBatch(records, begin + len(records), missed, self._block_size)

    def _end(self, live: _Live, choice: int) -> None:
        spec = live.spec
        self._ended.append(
            ArrivalRecord(
                live.arrived_at,
                len(spec.prompt_token_ids),
                live.tokens.pop(choice),
                spec.tenant,
                live.keys,
            )
        )
        if not live.tokens:
            del self._live[spec.request_id]
        if len(self._ended) > _MOST_KEPT:
            self._ended.popleft()
            self._first += 1
