"""Tells the contiguous shadow what happens in an engine, and keeps its failures to itself.

The shadow is a yardstick: whatever goes wrong in it, requests are served on, without it. Units:
tokens, seconds on the engine's clock.
"""

import logging
from collections.abc import Callable, Sequence

from blockyard.scheduler.contiguous.shadow import ContiguousShadow
from blockyard.scheduler.contiguous.shadow_report import PolicyReport
from blockyard.scheduler.request import RequestSpec, RequestUpdate

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
        try:
            if self._shadow is not None:
                if spec.num_choices > 1:
                    self._choices[spec.request_id] = set(range(spec.num_choices))
                for choice in range(spec.num_choices):
                    self._shadow.arrive(
                        _name(spec.request_id, choice),
                        len(spec.prompt_token_ids),
                        spec.sampling.max_tokens,
                        self._clock(),
                    )
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
