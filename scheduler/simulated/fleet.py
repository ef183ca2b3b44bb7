"""Which of a replay's groups are up, start or drain, as the scaling policy decides over time.

A group that goes takes no more requests, finishes those it has and is gone then; one that comes
knows nothing of what it served before. Units: simulated seconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from blockyard.scheduler.group_load import ClusterLoad, GroupLoad, choose_retiring
from blockyard.scheduler.scaling import ScalingMemory, ScalingPolicy, decide_groups
from blockyard.scheduler.simulated.binder import Binder
from blockyard.scheduler.simulated.group import SimulatedGroup

__all__ = ["Fleet", "ScaledGroups"]


@dataclass(frozen=True, slots=True)
class ScaledGroups:
    """How a replay scales: the policy, and what it takes to follow it.

    Attributes:
        policy: decides.
        places: most requests in a group's step.
        start_seconds: from the decision until a group takes requests.
        look_seconds: between two looks at the books.
    """

    policy: ScalingPolicy
    places: int
    start_seconds: float = 15.0
    look_seconds: float = 1.0


class _State(Enum):
    DOWN = "down"
    STARTING = "starting"
    UP = "up"
    DRAINING = "draining"


class Fleet:
    """All groups that there may be. The fewest that the policy allows are up from the beginning."""

    def __init__(
        self, groups: Sequence[SimulatedGroup], binder: Binder, scaled: ScaledGroups
    ) -> None:
        self._groups = groups
        self._binder = binder
        self._scaled = scaled
        self._memory = ScalingMemory()
        self._states = [_State.DOWN] * len(groups)
        self._ready_at = [math.inf] * len(groups)
        self._next_look = 0.0
        # Prompt tokens that a group had let in before it last came up.
        self._admitted_before = [0] * len(groups)
        self._since = self._group_seconds = 0.0
        self._num_changes = self._peak = 0
        for index, group in enumerate(groups):
            group.rest(0.0)
            if index < scaled.policy.min_groups:
                self._come_up(index, 0.0)

    @property
    def next_event(self) -> float:
        """When something is to be done here next."""
        return min(self._next_look, min(self._ready_at, default=math.inf))

    def step(self, now: float, unbound_requests: int) -> None:
        """Do what is due: let groups come up, look at the books, start some or let some go."""
        for index, ready_at in enumerate(self._ready_at):
            if ready_at <= now:
                self._come_up(index, now)
        if now < self._next_look:
            return
        self._next_look = now + self._scaled.look_seconds
        loads = {load.group_id: (index, load) for index, load in self._loads(now)}
        starting = self._states.count(_State.STARTING)
        load = ClusterLoad(tuple(load for _, load in loads.values()), starting, unbound_requests)
        decision = decide_groups(self._scaled.policy, load, self._memory, now)
        self._memory = decision.memory
        more = decision.groups - len(loads) - starting
        self._num_changes += more != 0
        for index in [i for i, state in enumerate(self._states) if state is _State.DOWN][
            : max(0, more)
        ]:
            self._states[index] = _State.STARTING
            self._ready_at[index] = now + self._scaled.start_seconds
        for group_id in choose_retiring(load.groups, max(0, -more)):
            self._retire(loads[group_id][0], now)

    def note_idle(self, index: int, now: float) -> None:
        """A group has nothing to do; one that drains is gone with that."""
        if self._states[index] is _State.DRAINING:
            self._count(now)
            self._states[index] = _State.DOWN
            self._groups[index].rest(now)

    def figures(self, end: float) -> dict[str, Any]:
        """What the scaling came to by the end of the replay."""
        self._count(end)
        return {
            "group_seconds": self._group_seconds,
            "mean_groups": self._group_seconds / end if end else 0.0,
            "peak_groups": self._peak,
            "changes": self._num_changes,
        }

    def _loads(self, now: float) -> list[tuple[int, GroupLoad]]:
        found = []
        for index, group in enumerate(self._groups):
            if self._states[index] is _State.UP:
                ledger = group.candidate(now).ledger
                load = GroupLoad.of(group.group_id, ledger, self._scaled.places)
                admitted = load.admitted_tokens - self._admitted_before[index]
                found.append((index, replace(load, admitted_tokens=admitted)))
        return found

    def _come_up(self, index: int, now: float) -> None:
        self._count(now)
        self._states[index] = _State.UP
        self._ready_at[index] = math.inf
        group = self._groups[index]
        group.wake(now)
        ledger = group.ledger()
        self._admitted_before[index] = ledger.prompt_tokens - ledger.prefix_hit_tokens
        self._binder.open(index)
        self._peak = max(self._peak, self._num_there())

    def _retire(self, index: int, now: float) -> None:
        self._binder.close(index)
        self._states[index] = _State.DRAINING
        if not self._groups[index].num_requests:
            self.note_idle(index, now)

    def _num_there(self) -> int:
        return len(self._states) - self._states.count(_State.DOWN)

    def _count(self, now: float) -> None:
        """Count the time of groups that are there, whatever they do: somebody pays for them."""
        there = self._num_there() - self._states.count(_State.STARTING)
        self._group_seconds += (now - self._since) * there
        self._since = now
