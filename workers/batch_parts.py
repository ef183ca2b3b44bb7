"""Parts of a batch that only some requests have: tokens for rules, prompts that are scored."""

from dataclasses import dataclass

from blockyard.workers.logit_rules import LogitRules

__all__ = ["PromptRow", "RuleTokens"]


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
