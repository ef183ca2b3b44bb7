"""Tells the contiguous shadow what happens in an engine, and keeps its failures to itself.

The shadow is a yardstick: whatever goes wrong in it, requests are served on, without it. Units:
tokens, seconds on the engine's clock.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from blockyard.scheduler.contiguous.shadow import ContiguousShadow
from blockyard.scheduler.contiguous.shadow_report import PolicyReport
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.snapshot import RequestSnapshot

__all__ = ["ShadowFeed"]

logger = logging.getLogger(__name__)


class ShadowFeed:
    """Feeds a shadow of `capacity` slots for requests of up to `limit` tokens.

    A contiguous server shares nothing: each choice is a request of its own there.
    """

    def __init__(self, capacity: int, limit: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Choices that have not ended, of requests with more than one.
        self._choices: dict[str, set[int]] = {}
        self._shadow: ContiguousShadow | None = ContiguousShadow(capacity, limit, clock())

    def submitted(self, spec: RequestSpec) -> None:
        """A request was taken."""
        most = spec.sampling.max_tokens
        known = dict.fromkeys(range(spec.num_choices), len(spec.prompt_token_ids))
        self._arrive(spec.request_id, {choice: (tokens, most) for choice, tokens in known.items()})

    def resumed(self, snapshot: RequestSnapshot) -> None:
        """A request was taken that had produced something elsewhere."""
        prompt = len(snapshot.spec.prompt_token_ids)
        arrivals: dict[int, tuple[int, int | None]] = {}
        for choice in snapshot.choices:
            told = len(choice.token_ids)
            for number in (choice.choice, *choice.begins):
                arrivals[number] = prompt + told, snapshot.max_tokens - told
        self._arrive(snapshot.spec.request_id, arrivals)

    def _arrive(self, request_id: str, arrivals: Mapping[int, tuple[int, int | None]]) -> None:
        """Choices come, with tokens known of each and the most it may yet produce."""
        try:
            if self._shadow is not None:
                if arrivals.keys() != {0}:
                    self._choices[request_id] = set(arrivals)
                for choice, (known, most) in arrivals.items():
                    self._shadow.arrive(_name(request_id, choice), known, most, self._clock())
        except Exception:
            self._give_up()

    def stepped(self, updates: Sequence[RequestUpdate]) -> None:
        """A step has ended with these updates."""
        try:
            if self._shadow is not None:
                if self._choices:
                    for update in updates:
                        if update.finish_reason is not None:
                            self._forget(update.request_id, update.choice)
                    updates = [
                        update._replace(request_id=_name(update.request_id, update.choice))
                        for update in updates
                    ]
                self._shadow.advance(updates, self._clock())
        except Exception:
            self._give_up()

    def aborted(self, request_id: str, choice: int | None) -> None:
        """A request, or one choice, was ended from outside, or had ended already."""
        try:
            if self._shadow is not None:
                live = self._choices.get(request_id, {0})
                for ended in tuple(live) if choice is None else (choice,):
                    self._forget(request_id, ended)
                    self._shadow.end(_name(request_id, ended), self._clock())
        except Exception:
            self._give_up()

    def reports(self) -> tuple[PolicyReport, ...]:
        """Each policy's counts; empty once the shadow has failed."""
        try:
            if self._shadow is not None:
                return self._shadow.report(self._clock())
        except Exception:
            self._give_up()
        return ()

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
