"""Requests that decode in lockstep: one token each in every step, from the newest that is known.

What all of them do in a step is done for all at once, by columns and a clock; one by one are looked
at only those who are due: whose slots are used up, whose block is full, whose last token comes. A
request falls in while nothing else is to be done for it, and falls out before anything is. Knows
requests by their counts; nothing of pools, queues or clients. Units: tokens, steps in lockstep.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from blockyard.scheduler.due_times import DueTimes
from blockyard.scheduler.pace import Pace
from blockyard.scheduler.plan import PLACEHOLDER
from blockyard.scheduler.request import Request, RequestState
from blockyard.scheduler.stride import LockstepColumns, Stride

__all__ = ["Lockstep", "may_fall_in"]

_Key = TypeVar("_Key", int, tuple[int, str])

_LEAST_ROOM = 64


def may_fall_in(request: Request) -> bool:
    """Whether a running request computes nothing but its newest token next, given a slot for it.

    Its first token is told on its own: it was, or will be by a step in flight.
    """
    start = request.num_planned
    left = len(request.tokens) - start
    return (
        left <= 1
        and (not left or request.first_token_at is not None)
        and start + 1 < request.end_at
        and request.handle is not None
        and not request.pending_forks
        and not request.sampling.searches
    )


class Lockstep:
    """Those in lockstep, most urgent first."""

    def __init__(self) -> None:
        self.tenants: dict[tuple[int, str], int] = {}
        """How many there are of each priority and tenant."""
        self.stop_token_ids: dict[int, int] = {}
        """Tokens that end some of them, and how many."""
        self._pace = Pace()
        self._columns = LockstepColumns([], [], [], [])
        self._handles: list[int] = []
        # Where each would have started in the first step of all.
        self._origins = np.zeros(_LEAST_ROOM, dtype=np.int64)
        self._growing = DueTimes()  # by steps planned
        self._booking = DueTimes()  # by steps committed
        self._in_flight: list[Stride] = []
        # The handles as plans tell them, as long as nobody comes or goes.
        self._told_handles: tuple[int, ...] | None = None
        # Each row's newest token, while no step is in flight and nobody has to look for them.
        self._newest: list[int] | None = None
        # Since the last plan.
        self._joined: list[Request] = []

    def __len__(self) -> int:
        """Requests in lockstep."""
        return len(self._columns.requests)

    def __contains__(self, request: Request) -> bool:
        """Whether a request is in lockstep."""
        return request.pace is self._pace

    def join(self, request: Request) -> None:
        """Take in a request that `may_fall_in`."""
        handle = request.handle
        if handle is None or request.pace is not None:
            raise ValueError(f"request {request.request_id!r} cannot fall in: {request.handle}")
        request.keep_pace(self._pace)
        columns = self._own_columns() if self._in_flight else self._columns
        count = len(columns.requests)
        youngest = not count or columns.requests[-1] < request
        place = count if youngest else columns.place(request)
        columns.requests.insert(place, request)
        self._handles.insert(place, handle)
        columns.names.insert(place, request.request_id)
        columns.choices.insert(place, request.choice)
        columns.tokens.insert(place, request.tokens)
        if count == len(self._origins):
            self._origins = np.concatenate((self._origins, np.zeros_like(self._origins)))
        if place < count:
            self._origins[place + 1 : count + 1] = self._origins[place:count]
        self._origins[place] = request.origin
        self.watch_growth(request)
        request.booked_at = self._books_at(request)
        self._booking.put(request, request.booked_at)
        self._count(request, 1)
        self._joined.append(request)
        self._told_handles = None
        if self._newest is not None:
            self._newest.insert(place, _newest_token(request))

    def leave(self, request: Request) -> None:
        """Let a request go; what it has in flight is settled apart from the others."""
        for stride in self._in_flight:
            if request.joined <= stride.number:
                stride.apart.append(request)
        self._growing.drop(request, request.grows_at)
        self._booking.drop(request, request.booked_at)
        request.lose_pace()
        columns = self._own_columns() if self._in_flight else self._columns
        place, count = columns.place(request), len(columns.requests)
        for column in (*columns, self._handles):
            del column[place]
        self._origins[place : count - 1] = self._origins[place + 1 : count]
        self._count(request, -1)
        self._told_handles = None
        if self._newest is not None:
            del self._newest[place]

    def watch_growth(self, request: Request) -> None:
        """Be told of a request when it has no slot for its next token, or needs none."""
        slots = min(request.table.num_slots, request.end_at - 1)
        request.grows_at = slots - request.origin
        self._growing.put(request, request.grows_at)

    def watch_grown(self, requests: Sequence[Request], num_slots: int) -> None:
        """The same for several that were due and have got `num_slots` more: most end later."""
        at = self._pace.planned + num_slots
        for request in requests:
            request.grows_at = at
        self._growing.put_all(requests, at)
        for request in requests:
            if request.table.num_slots >= request.end_at:
                self._growing.drop(request, at)
                self.watch_growth(request)

    def take_growing(self) -> list[Request]:
        """Who can not take part in the next plan as things are; told once."""
        return self._growing.take(self._pace.planned)

    def advance(self, step: int) -> Stride:
        """Let everybody compute a token in the plan `step`."""
        pace = self._pace
        handles = self._told_handles
        if handles is None:
            handles = self._told_handles = tuple(self._handles)
        starts = tuple((self._origins[: len(handles)] + pace.planned).tolist())
        stride = Stride(self._columns, pace.planned, handles, starts, self._token_ids())
        pace.planned += 1
        pace.step = step
        self._in_flight.append(stride)
        self._joined.clear()
        self._newest = None
        return stride

    def commit(
        self, stride: Stride, sampled: tuple[int, ...]
    ) -> tuple[LockstepColumns, tuple[int, ...], list[Request]]:
        """The oldest stride is over, and each row has sampled a token.

        Returns:
            Rows of those still in lockstep, who have their token now, until the next one comes or
            goes; these tokens; and who of them is due: has a full block, or its last token.
        """
        if self._in_flight.pop(0) is not stride:
            raise ValueError("an older step in lockstep is not committed yet")
        pace = self._pace
        pace.committed += 1
        rows, sampled = stride.settled(sampled)
        for tokens, token in zip(rows.tokens, sampled, strict=True):
            tokens.append(token)
        if not self._in_flight:
            self._newest = list(sampled)
        return rows, sampled, self._booking.take(pace.committed)

    def watch_booking(self, requests: Sequence[Request]) -> None:
        """Be told of requests when their next block is full, or their last token has come.

        Those who are not in lockstep any more are left out.
        """
        pace = self._pace
        by_time: dict[int, list[Request]] = {}
        for request in requests:
            if request.pace is pace:
                request.booked_at = at = self._books_at(request)
                by_time.setdefault(at, []).append(request)
        for at, due in by_time.items():
            self._booking.put_all(due, at)

    def _books_at(self, request: Request) -> int:
        """Steps committed after which its next block is full, or its last token has come."""
        tokens = min(request.publish_at, request.end_at - 1)
        # What is full already is published by a step of its own, which is in flight.
        return max(tokens - request.origin, self._pace.committed + 1, request.joined + 1)

    def leap(self, count: int, step: int) -> None:
        """Everybody has computed `count` tokens, up to the plan `step`, none of them in flight.

        Who was due meanwhile must have been given what it needs: it is watched anew.
        """
        pace = self._pace
        pace.planned += count
        pace.committed += count
        pace.step = step
        self._newest = None
        for request in self._growing.take_until(pace.planned - 1):
            self.watch_growth(request)
        self.watch_booking(self._booking.take_until(pace.committed))

    def check(self, running: Sequence[Request], out_of_step: Sequence[Request]) -> None:
        """Prove that everybody who runs is in lockstep or not, and told of in time.

        Raises:
            AssertionError: naming the request.
        """
        pace = self._pace
        if len(self._in_flight) != pace.planned - pace.committed:
            raise AssertionError(f"{len(self._in_flight)} steps in lockstep are in flight: {pace}")
        if self._newest not in (None, [tokens[-1] for tokens in self._columns.tokens]):
            raise AssertionError("some newest token in lockstep is not the newest")
        if sorted((*self._columns.requests, *out_of_step)) != list(running):
            raise AssertionError("somebody runs neither in lockstep nor out of step, or in both")
        tenants: dict[tuple[int, str], int] = {}
        stops: dict[int, int] = {}
        origins = self._origins[: len(self)].tolist()
        for row in zip(*self._columns, self._handles, origins, strict=True):
            request, name = row[0], row[0].request_id
            spec = request.spec
            _add(tenants, (spec.priority, spec.tenant), 1)
            for token in request.sampling.stop_token_ids:
                _add(stops, token, 1)
            true = (name, request.choice, request.tokens, request.handle, request.origin)
            if row[1:] != true or request.tokens is not row[3]:
                raise AssertionError(f"request {name!r} is in lockstep as {row[1:]}, is {true}")
            if request.pace is not pace or request.state is not RequestState.RUNNING:
                raise AssertionError(f"request {name!r} is {request.state} and in lockstep")
            table = request.table
            slots = min(table.num_slots, request.end_at - 1)
            if table.num_writable < table.num_slots or request.pending_forks:
                raise AssertionError(f"request {name!r} is in lockstep and must not go on so")
            if request.grows_at != slots - request.origin:
                raise AssertionError(f"request {name!r} goes on in lockstep beyond its slots")
            tokens = min(request.publish_at, request.end_at - 1) - request.origin
            if request.booked_at > max(tokens, pace.committed + 1, request.joined + 1):
                raise AssertionError(f"request {name!r} would be booked too late")
            told = self._growing.is_due(request, request.grows_at)
            if request.grows_at < pace.planned or not told:
                raise AssertionError(f"nobody is told when request {name!r} has no more slots")
            told = self._booking.is_due(request, request.booked_at)
            if request.booked_at <= pace.committed or not told:
                raise AssertionError(f"nobody is told when request {name!r} fills a block, or ends")
        if not len(self._growing) == len(self._booking) == len(self):
            raise AssertionError("somebody is due in lockstep, and is not in it")
        if (tenants, stops) != (self.tenants, self.stop_token_ids):
            raise AssertionError(f"{self.tenants} are counted in lockstep, it is {tenants}")
        if any(r.pace is not None for r in out_of_step):
            raise AssertionError("somebody out of step is counted by the clock")

    def _own_columns(self) -> LockstepColumns:
        """Columns that no step in flight has."""
        columns: tuple[list[Any], ...] = self._columns
        if any(stride.rows is columns for stride in self._in_flight):
            self._columns = LockstepColumns._make(map(list, columns))
        return self._columns

    def _token_ids(self) -> tuple[int, ...]:
        """The newest tokens, where they are known yet."""
        if self._newest is not None:
            return tuple(self._newest)
        if self._pace.planned == self._pace.committed:
            token_ids = [tokens[-1] for tokens in self._columns.tokens]
        else:
            token_ids = [PLACEHOLDER] * len(self)
        for request in self._joined:
            if request.pace is self._pace:
                token_ids[self._columns.place(request)] = _newest_token(request)
        return tuple(token_ids)

    def _count(self, request: Request, change: int) -> None:
        spec = request.spec
        _add(self.tenants, (spec.priority, spec.tenant), change)
        for token in request.sampling.stop_token_ids:
            _add(self.stop_token_ids, token, change)


def _newest_token(request: Request) -> int:
    """What a request that has just joined computes next, as far as that is known."""
    return request.tokens[-1] if request.num_planned < len(request.tokens) else PLACEHOLDER


def _add(counts: dict[_Key, int], key: _Key, change: int) -> None:
    """Count up or down; what is not there any more is absent."""
    counts[key] = count = counts.get(key, 0) + change
    if not count:
        del counts[key]
