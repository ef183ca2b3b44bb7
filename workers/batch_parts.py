"""Parts of a batch that only some requests have: tokens for rules, prompts that are scored."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blockyard.scheduler.plan import StepPlan
from blockyard.workers.logit_rules import LogitRules

__all__ = ["PromptRow", "RuleTokens", "rule_tokens"]


@dataclass(frozen=True, slots=True)
class RuleTokens:
    """Computed tokens that a request's rules go by, from `position` on."""

    rules: LogitRules
    position: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromptRow:
    """Tokens of a prompt whose log probabilities are wanted, from `position` on; `top` beside."""

    handle: int
    position: int
    token_ids: tuple[int, ...]
    top: int


def rule_tokens(
    plan: StepPlan,
    token_ids: npt.NDArray[np.int64],
    rules: Sequence[LogitRules | None],
    children: Sequence[LogitRules | None],
) -> tuple[RuleTokens, ...]:
    """What rules must be told of a step.

    Args:
        plan: the step.
        token_ids: those that it computes, placeholders filled in.
        rules: of each row.
        children: of each fork, which know what their parents' did before this step.

    Guesses are none of it.
    """
    if not any(rules):
        return ()
    rows = {handle: row for row, handle in enumerate(plan.handles)}
    owners = [*range(len(rules)), *(rows[fork.parent] for fork in plan.forks)]
    begins, guesses = plan.offsets, plan.guesses or (0,) * len(plan.handles)
    return tuple(
        RuleTokens(
            told,
            plan.starts[row],
            tuple(token_ids[begins[row] : begins[row] + plan.counts[row] - guesses[row]].tolist()),
        )
        for row, told in zip(owners, (*rules, *children), strict=True)
        if told is not None
    )
