"""Tells the contiguous shadow what happens in an engine, and keeps its failures to itself.

The shadow is a yardstick: no step waits for it, and whatever goes wrong in it, requests are served
on, without it. What happens is noted with its time, and told when the engine says that it has time,
while workers compute. Units: tokens, seconds on the engine's clock.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from blockyard.scheduler.contiguous.shadow import ContiguousShadow
from blockyard.scheduler.contiguous.shadow_report import PolicyReport
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.snapshot import RequestSnapshot

__all__ = ["ShadowFeed"]

logger = logging.getLogger(__name__)


_MOST_UNTOLD = 1024
"""Things that are noted before the shadow is told of them whether there is time or not."""


class _Arrival(NamedTuple):
    """Choices of a request that come: the tokens known of each, and the most it may yet produce."""

    request_id: str
    choices: Mapping[int, tuple[int, int | None]]


class _Abort(NamedTuple):
    """A choice that was ended from outside; None: all of them."""

    request_id: str
    choice: int | None


_News = _Arrival | _Abort | Sequence[RequestUpdate]


class ShadowFeed:
    """Feeds a shadow of `capacity` slots for requests of up to `limit` tokens.

    A contiguous server shares nothing: each choice is a request of its own there.
    """

    def __init__(self, capacity: int, limit: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Choices that have not ended, of requests with more than one.
        self._choices: dict[str, set[int]] = {}
        # What the shadow has not been told, and when it happened.
        self._untold: list[tuple[float, _News]] = []
        self._shadow: ContiguousShadow | None = ContiguousShadow(capacity, limit, clock())

    def submitted(self, spec: RequestSpec) -> None:
        """A request was taken."""
        known = len(spec.prompt_token_ids)
        most = spec.sampling.max_tokens
        self._note(_Arrival(spec.request_id, dict.fromkeys(range(spec.num_choices), (known, most))))

    def resumed(self, snapshot: RequestSnapshot) -> None:
        """A request was taken that had produced something elsewhere."""
        prompt = len(snapshot.spec.prompt_token_ids)
        arrivals: dict[int, tuple[int, int | None]] = {}
        for choice in snapshot.choices:
            told = len(choice.token_ids)
            for number in (choice.choice, *choice.begins):
                arrivals[number] = prompt + told, snapshot.max_tokens - told
        self._note(_Arrival(snapshot.spec.request_id, arrivals))

    def stepped(self, updates: Sequence[RequestUpdate]) -> None:
        """A step has ended with these updates."""
        self._note(updates)

    def aborted(self, request_id: str, choice: int | None) -> None:
        """A request, or one choice, was ended from outside, or had ended already."""
        self._note(_Abort(request_id, choice))

    def catch_up(self) -> None:
        """Tell the shadow what has happened since the last call."""
        untold, self._untold = self._untold, []
        shadow = self._shadow
        if shadow is None:
            return
        try:
            for now, news in untold:
                if isinstance(news, _Arrival):
                    self._arrive(shadow, news, now)
                elif isinstance(news, _Abort):
                    self._abort(shadow, news, now)
                else:
                    self._advance(shadow, news, now)
        except Exception:
            self._give_up()

    def reports(self) -> tuple[PolicyReport, ...]:
        """Each policy's counts; empty once the shadow has failed."""
        self.catch_up()
        try:
            if self._shadow is not None:
                return self._shadow.report(self._clock())
        except Exception:
            self._give_up()
        return ()

    def _note(self, news: _News) -> None:
        self._untold.append((self._clock(), news))
        # Requests may come and go for long without any step.
        if len(self._untold) >= _MOST_UNTOLD:
            self.catch_up()

    def _arrive(self, shadow: ContiguousShadow, news: _Arrival, now: float) -> None:
        request_id, choices = news
        if choices.keys() != {0}:
            self._choices[request_id] = set(choices)
        for choice, (known, most) in choices.items():
            shadow.arrive(_name(request_id, choice), known, most, now)

    def _advance(
        self, shadow: ContiguousShadow, updates: Sequence[RequestUpdate], now: float
    ) -> None:
        if self._choices:
            for update in updates:
                if update.finish_reason is not None:
                    self._forget(update.request_id, update.choice)
            updates = [
                update._replace(request_id=_name(update.request_id, update.choice))
                for update in updates
            ]
        shadow.advance(updates, now)

    def _abort(self, shadow: ContiguousShadow, news: _Abort, now: float) -> None:
        request_id, choice = news
        live = self._choices.get(request_id, {0})
        for ended in tuple(live) if choice is None else (choice,):
            self._forget(request_id, ended)
            shadow.end(_name(request_id, ended), now)

    def _forget(self, request_id: str, choice: int) -> None:
        live = self._choices.get(request_id)
        if live is not None:
            live.discard(choice)
            if not live:
                del self._choices[request_id]

    def _give_up(self) -> None:
        self._shadow = None
        logger.exception("the contiguous shadow failed; the books go on without it")


def _name(request_id: str, choice: int) -> str:
    """What a choice is called in the shadow."""
    return f"{request_id}/{choice}" if choice else request_id
