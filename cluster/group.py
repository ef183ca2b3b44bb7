"""What an engine drives: the workers of one model copy, whatever connects them.

The seam between the step loop and in-process, wired or scripted workers. Knows no scheduler.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from blockyard.scheduler.plan import StepPlan, StepResult

__all__ = ["Group", "GroupLost"]


class GroupLost(Exception):
    """A rank died or failed; its blocks and the step in flight are gone. For the operator."""


class Group(Protocol):
    """The workers of one model copy, whatever connects them."""

    @property
    def weight_version(self) -> str:
        """Of the weights that are loaded; empty for those that the model was started with."""
        ...

    @property
    def acknowledged_step(self) -> int:
        """Newest step that every rank has finished."""
        ...

    @property
    def lost(self) -> str | None:
        """Why no step can be run any more, or None while every rank is there."""
        ...

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when `acknowledged_step` has grown, and when the group is lost."""
        ...

    def execute(self, plan: StepPlan) -> Coroutine[Any, Any, StepResult]:
        """Run one step on every rank and return rank 0's result.

        It may be called again before that; steps run in the order of the calls.

        Raises:
            GroupLost: a rank is gone.
        """
        ...

    async def close(self) -> None:
        """Let the workers go."""
        ...
