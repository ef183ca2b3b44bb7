"""A request with all that was produced for it: one value, enough to go on with it anywhere.

Another scheduler, with another pool and other blocks, makes the same tokens from it: they are a
function of the parameters, the seed, the choice and the tokens so far, and all of these are here.
What it holds of blocks is not: that is computed again. Units: tokens, seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from blockyard.scheduler.request import RefusalCode, Request, RequestRefused, RequestSpec

__all__ = ["ALONE", "ChoiceSnapshot", "RequestSnapshot", "check_snapshot", "take_snapshot"]


@dataclass(frozen=True, slots=True)
class ChoiceSnapshot:
    """One choice that has not ended.

    Attributes:
        choice: its number.
        token_ids: what it has produced; the random numbers of its next token follow from how many.
        begins: choices that begin with its tokens when it samples next.
        num_scored: tokens of the prompt whose log probabilities its client was told.
    """

    choice: int = 0
    token_ids: tuple[int, ...] = ()
    begins: tuple[int, ...] = ()
    num_scored: int = 0


ALONE = ChoiceSnapshot()
"""A request that has not begun and begins no other choices."""


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """A request between two steps.

    Attributes:
        spec: as it was submitted, without `block_keys`: they are of one block size.
        max_tokens: most tokens of an answer, as the first scheduler resolved it.
        choices: those that have not ended, at least one.
        extra_choices: numbers beyond the spec's that were ever given to a choice.
        age_seconds: since it arrived where it first did; its deadline counts from there.
    """

    spec: RequestSpec
    max_tokens: int
    choices: tuple[ChoiceSnapshot, ...]
    extra_choices: tuple[int, ...] = ()
    age_seconds: float = 0.0

    @property
    def numbers(self) -> tuple[int, ...]:
        """Choices that have not ended, begun or not."""
        return tuple(n for choice in self.choices for n in (choice.choice, *choice.begins))

    @property
    def has_started(self) -> bool:
        """Whether anything was produced for it."""
        return any(choice.token_ids for choice in self.choices)

    @property
    def known_tokens(self) -> int:
        """Tokens that a scheduler computes of it before the first new one."""
        longest = max(len(choice.token_ids) for choice in self.choices)
        return len(self.spec.prompt_token_ids) + longest


def take_snapshot(
    members: Iterable[Request], extra_choices: Iterable[int], now: float
) -> RequestSnapshot:
    """The value of a request that is served, given its members.

    A choice that goes on only to begin others is not wanted: the first of those takes its place.
    """
    choices = []
    for member in members:
        first, begins = member.choice, tuple(member.pending_forks)
        if member.forgone:
            first, *rest = begins
            begins = tuple(rest)
        told = tuple(member.tokens[member.num_prompt :])
        choices.append(ChoiceSnapshot(first, told, begins, member.num_scored))
    return RequestSnapshot(
        spec=replace(member.spec, block_keys=()),
        max_tokens=member.max_tokens,
        choices=tuple(sorted(choices, key=lambda choice: choice.choice)),
        extra_choices=tuple(sorted(extra_choices)),
        age_seconds=now - member.arrived_at,
    )


def check_snapshot(snapshot: RequestSnapshot, max_running: int) -> None:
    """Refuse what no scheduler can have left behind, or what this one has no places for.

    Raises:
        RequestRefused: INVALID, naming the part.
    """
    numbers = snapshot.numbers
    known = {*range(snapshot.spec.num_choices), *snapshot.extra_choices}
    if not numbers or len(set(numbers)) < len(numbers) or not known.issuperset(numbers):
        raise _invalid("choices", f"are {numbers}; each must be one of {sorted(known)}, once")
    for choice in snapshot.choices:
        if 1 + len(choice.begins) > max_running:
            raise _invalid(
                "n",
                f"{1 + len(choice.begins)} choices begin together; {max_running} run at once here",
            )
        if len(choice.token_ids) >= snapshot.max_tokens:
            raise _invalid(
                "choices",
                f"choice {choice.choice} has all {snapshot.max_tokens} tokens that it may produce",
            )


def _invalid(field: str, message: str) -> RequestRefused:
    return RequestRefused(RefusalCode.INVALID, message, field)
