"""How long the steps of one engine took and how large they were, while somebody records.

Keeps something only from the first question on, and for a while after the last. A step lasts from
the begin of its planning, or from the end of the step before it when work was left then, to the
moment when its news is told: what one lasts longer, the next begins later. Units: rows, tokens,
seconds on the engine's clock.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from blockyard.scheduler.plan import StepPlan

__all__ = ["StepLog", "StepRecord"]

_LEASE_SECONDS = 60.0
"""After so long without a question nobody records any more."""

_MOST_KEPT = 4096
"""Steps that were not asked for yet; the oldest go first."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: its rows, the tokens that it computed, and how long it took.

    `context_tokens` are read by all rows together, computed ones among them; `attended_pairs`
    are pairs of a computed token and one that it looks at.
    """

    rows: int
    tokens: int
    context_tokens: int
    attended_pairs: float
    seconds: float


class StepLog:
    """Steps of one engine, which end in the order in which they were begun."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = float("-inf")
        # Steps under way: when each was begun, and what is in it if it is to be remembered.
        self._under_way: deque[tuple[float, StepPlan | None]] = deque()
        # When the step before ended, if work was left; an idle engine's next step begins when
        # somebody has come.
        self._busy_since: float | None = None
        self._ended: deque[StepRecord] = deque(maxlen=_MOST_KEPT)

    def began(self, plan: StepPlan, now: float) -> None:
        """A step that was begun to be planned at `now` is under way."""
        self._under_way.append((now, plan if now <= self._until else None))

    def ended(self, *, more: bool) -> None:
        """The oldest step has ended and was told; `more`: work is left."""
        began, plan = self._under_way.popleft()
        now = self._clock()
        if plan is not None:
            since = began if self._busy_since is None else self._busy_since
            self._ended.append(_measured(plan, now - since))
        self._busy_since = now if more or self._under_way else None

    def abandoned(self) -> None:
        """Whatever is under way never ends."""
        self._under_way.clear()
        self._busy_since = None

    def take(self) -> tuple[StepRecord, ...]:
        """Steps that have ended since the last question; from now on they are remembered."""
        self._until = self._clock() + _LEASE_SECONDS
        taken = tuple(self._ended)
        self._ended.clear()
        return taken


def _measured(plan: StepPlan, seconds: float) -> StepRecord:
    starts, counts = plan.starts, plan.counts
    tokens = sum(counts)
    pairs = sum(count * (start + count / 2) for start, count in zip(starts, counts, strict=True))
    return StepRecord(len(counts), tokens, sum(starts) + tokens, pairs, seconds)
