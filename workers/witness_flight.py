"""Steps in flight, as who drives a scheduler beside witnesses knows them.

Tells who has nothing to compute until a step is committed, and keeps the handles of choices that a
step begins: workers know them at once, everybody else when it is committed. Members are named as
in `witness_laws`. Units: steps.
"""

from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from blockyard.scheduler.plan import RowError, StepPlan, StepResult, guesses_told, num_right

__all__ = ["EndedStep", "StepsInFlight"]

_MOST_MISSED = 2
"""Plans for which the most urgent may wait: others leave its place first, then its blocks."""


class EndedStep(NamedTuple):
    """A step that is to be committed.

    Attributes:
        plan: what was to be done.
        result: what came out.
        born: choices that it begins: their handles, who begins them, their numbers.
        sampled: members that have sampled, unless they have ended before.
        right: guesses that were right, by handle.
    """

    plan: StepPlan
    result: StepResult
    born: list[tuple[int, Any, int]]
    sampled: list[Any]
    right: dict[int, tuple[int, ...]]


class StepsInFlight:
    """Plans and their results, which are known here before the scheduler hears of them."""

    def __init__(self) -> None:
        self._steps: deque[tuple[StepPlan, StepResult]] = deque()
        self._missed = 0
        self.unborn: dict[Hashable, Hashable] = {}
        """Handles of choices that these steps begin, and who begins them."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self._steps)

    def parent_or_self(self, name: Hashable) -> Any:
        """Whose tokens a member has: an unborn one its parent's, anybody else its own."""
        return self.unborn.get(name, name)

    def begin(self, plan: StepPlan, result: StepResult, names: Mapping[int, Hashable]) -> None:
        """A plan was made; `names` are members by handle."""
        self._steps.append((plan, result))
        self.unborn.update((fork.handle, names[fork.parent]) for fork in plan.forks)

    def end(self, names: Mapping[int, Hashable]) -> EndedStep:
        """The oldest step is to be committed; `names` are members by handle."""
        plan, result = self._steps.popleft()
        born = [(f.handle, self.unborn.pop(f.handle), f.sampling.choice) for f in plan.forks]
        rows = zip(plan.handles, plan.samples, strict=True)
        sampled = [names[handle] for handle, samples in rows if samples and handle in names]
        return EndedStep(plan, result, born, sampled, _right_guesses(plan, result))

    def check_progress(self, most_urgent: Hashable, rows: Collection[Hashable]) -> None:
        """Prove that the most urgent member computes in a plan.

        One whose place or blocks others must leave first waits for their steps in flight.

        Raises:
            AssertionError: naming it.
        """
        self._missed = 0 if most_urgent in rows else self._missed + 1
        if self._missed > (_MOST_MISSED if self._steps else 0):
            raise AssertionError(f"the most urgent, {most_urgent}, waits")

    def fail(self, handle: int) -> None:
        """Let the oldest step answer that a row's logits could not be sampled."""
        plan, result = self._steps[0]
        errors = (*result.errors, RowError(handle, "failed"))
        self._steps[0] = plan, replace(result, errors=errors)

    def awaiting(
        self, names: Mapping[int, Hashable], is_last: Callable[[Any], bool]
    ) -> set[Hashable]:
        """Members that have nothing to compute before a step is committed.

        The last token that they may produce is under way, or choices that share the block which
        they write to next. `is_last` tells whether a member's next token is its last.
        """
        waits = set(self.unborn.values())
        for plan, _ in self._steps:
            for handle, samples in zip(plan.handles, plan.samples, strict=True):
                if samples and handle in names and is_last(names[handle]):
                    waits.add(names[handle])
        return waits


def _right_guesses(plan: StepPlan, result: StepResult) -> dict[int, tuple[int, ...]]:
    right = {}
    at = 0
    plan = guesses_told(plan, result)
    columns = plan.handles, plan.samples, plan.offsets, plan.counts, plan.guesses
    # Without guesses in the plan the last column is empty, and so is the answer.
    for handle, samples, offset, count, guessed in zip(*columns, strict=False):
        guesses = plan.token_ids[offset + count - guessed : offset + count]
        right[handle] = guesses[: num_right(guesses, result.token_ids[at:])] if guessed else ()
        at += samples + guessed
    return right
