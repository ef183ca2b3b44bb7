"""Parts of a batch that only some requests have: tokens for rules, prompts that are scored."""

from collections.abc import Sequence
from dataclasses import dataclass

from blockyard.scheduler.plan import StepPlan
from blockyard.workers.logit_rules import LogitRules

__all__ = ["PromptRow", "RuleTokens", "rule_tokens"]


@dataclass(frozen=True, slots=True)
class RuleTokens:
    """Computed tokens that a request's rules go by: `input_ids[begin:end]`, from `position` on."""

    rules: LogitRules
    position: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class PromptRow:
    """Tokens of a prompt whose log probabilities are wanted, from `position` on; `top` beside."""

    handle: int
    position: int
    token_ids: tuple[int, ...]
    top: int


def rule_tokens(
    plan: StepPlan, rules: Sequence[LogitRules | None], children: Sequence[LogitRules | None]
) -> tuple[RuleTokens, ...]:
    """What rules must be told of a step.

    Args:
        plan: the step.
        rules: of each row.
        children: of each fork, which know what their parents' did before this step.
    """
    if not any(rules):
        return ()
    rows = {handle: row for row, handle in enumerate(plan.handles)}
    owners = [*range(len(rules)), *(rows[fork.parent] for fork in plan.forks)]
    offsets = plan.offsets
    return tuple(
        RuleTokens(told, plan.starts[row], offsets[row], offsets[row] + plan.counts[row])
        for row, told in zip(owners, (*rules, *children), strict=True)
        if told is not None
    )
