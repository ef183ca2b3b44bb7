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
    """Feeds a shadow of `capacity` slots for requests of up to `limit` tokens."""

    def __init__(self, capacity: int, limit: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._shadow: ContiguousShadow | None = ContiguousShadow(capacity, limit, clock())

    def submitted(self, spec: RequestSpec) -> None:
        """A request was taken."""
        try:
            if self._shadow is not None:
                prompt_tokens = len(spec.prompt_token_ids)
                self._shadow.arrive(
                    spec.request_id, prompt_tokens, spec.sampling.max_tokens, self._clock()
                )
        except Exception:
            self._give_up()

    def stepped(self, updates: Sequence[RequestUpdate]) -> None:
        """A step has ended with these updates."""
        try:
            if self._shadow is not None:
                self._shadow.advance(updates, self._clock())
        except Exception:
            self._give_up()

    def aborted(self, request_id: str) -> None:
        """A request was ended from outside, or had ended already."""
        try:
            if self._shadow is not None:
                self._shadow.end(request_id, self._clock())
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

    def _give_up(self) -> None:
        self._shadow = None
        logger.exception("the contiguous shadow failed; the books go on without it")
