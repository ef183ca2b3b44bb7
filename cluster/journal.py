"""What an ingress has received of one live request: enough to have it go on at another group.

All state of a request is a function of this: an engine that dies takes nothing with it. Knows
neither groups nor wires. Units: tokens, seconds on the caller's clock.
"""

from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.snapshot import ChoiceSnapshot, RequestSnapshot

__all__ = ["Journal"]


class Journal:
    """One request, from the moment an engine has taken it.

    Args:
        spec: as it was submitted.
        max_tokens: most tokens of an answer, as the engine resolved it.
        began_at: when it was submitted.
    """

    def __init__(self, spec: RequestSpec, max_tokens: int, began_at: float) -> None:
        self._spec = spec
        self._max_tokens = max_tokens
        self._began_at = began_at
        self._tokens: dict[int, list[int]] = {choice: [] for choice in range(spec.num_choices)}
        self._num_scored = dict.fromkeys(self._tokens, 0)
        self.num_tokens = 0
        """Tokens that were produced for it."""

    @property
    def choices(self) -> tuple[int, ...]:
        """Those that have not ended."""
        return tuple(self._tokens)

    def add(self, update: RequestUpdate) -> None:
        """An update on its way to the client."""
        self.num_tokens += len(update.token_ids)
        if update.finish_reason is not None:
            self.end(update.choice)
        elif update.choice in self._tokens:
            self._tokens[update.choice].extend(update.token_ids)
            self._num_scored[update.choice] += len(update.prompt_logprobs)

    def end(self, choice: int) -> None:
        """Nothing more is wanted of a choice."""
        self._tokens.pop(choice, None)

    def snapshot(self, now: float) -> RequestSnapshot | None:
        """The value with which it goes on elsewhere; None when every choice has ended.

        Choices that have no tokens yet begin together, after one computation of the prompt.
        """
        begun = [choice for choice, tokens in self._tokens.items() if tokens]
        fresh = [choice for choice, tokens in self._tokens.items() if not tokens]
        choices = [
            ChoiceSnapshot(choice, tuple(self._tokens[choice]), num_scored=self._num_scored[choice])
            for choice in begun
        ]
        if fresh:
            first, *others = fresh
            scored = self._num_scored[first]
            choices.append(ChoiceSnapshot(first, begins=tuple(others), num_scored=scored))
        if not choices:
            return None
        return RequestSnapshot(
            self._spec, self._max_tokens, tuple(choices), age_seconds=now - self._began_at
        )
