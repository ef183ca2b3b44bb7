"""Members of requests as who drives a scheduler knows them: who began, and produced what.

A member is one choice of a request, named by the request's id, later ones by `id/number`. Beside a
real scheduler these books say what each must produce, which children of a plan still count, and who
begins late because the choice that was to begin it was given up. Units: tokens.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.fake import witness_generate

__all__ = ["MemberBooks", "check_order", "member_name"]


def member_name(request_id: str, choice: int) -> str:
    """The first choice goes by the request's id alone."""
    return f"{request_id}/{choice}" if choice else request_id


def check_order(
    urgency: Callable[[Hashable], tuple[int, ...]],
    rows: Collection[Hashable],
    granted: Iterable[Hashable],
    held_up: Collection[Hashable],
    victims: Iterable[Hashable],
) -> None:
    """Prove that a step takes nothing from anybody for somebody less urgent.

    Args:
        urgency: the smaller, the sooner served.
        rows: who computes in the step.
        granted: who gets blocks in it.
        held_up: who has a place and does not compute.
        victims: who has lost a place for it.

    Raises:
        AssertionError: naming the member.
    """
    for name in granted:
        for other in held_up:
            if urgency(other) < urgency(name):
                raise AssertionError(f"{name} gets blocks, the more urgent {other} is held up")
    for victim in victims:
        for row in rows:
            if urgency(victim) <= urgency(row):
                raise AssertionError(f"{victim} has lost its place, the less urgent {row} computes")


class MemberBooks:
    """Who has begun, and what was wished for."""

    def __init__(self) -> None:
        self.outputs: dict[str, list[int]] = {}
        """Tokens produced by each member that has begun, those it began with included."""
        self.choices: dict[str, int] = {}
        self._inherited: dict[str, int] = {}
        self._wanted: dict[str, tuple[str, int]] = {}
        self._given_up: set[str] = set()
        self._dropped: set[str] = set()
        self._ended: set[str] = set()

    def begin(self, request_id: str, choice: int, before: Sequence[int]) -> str:
        """A member begins with the output of another; returns its name."""
        name = member_name(request_id, choice)
        self.choices[name] = choice
        self.outputs[name] = list(before)
        self._inherited[name] = len(before)
        return name

    def want(self, request_id: str, choice: int, parent: str) -> None:
        """A choice is to begin where its parent samples next.

        Raises:
            AssertionError: the number was used before in this request.
        """
        name = member_name(request_id, choice)
        if name in self._wanted or name in self.outputs:
            raise AssertionError(f"choice {name!r} is begun a second time")
        self._wanted[name] = parent, choice

    def end(self, request_id: str) -> None:
        """All of a request was ended: whoever has not begun never does."""
        self._ended.add(request_id)

    def end_choice(self, request_id: str, choice: int) -> None:
        """One choice was ended, begun or not; whom it is to begin goes on."""
        name = member_name(request_id, choice)
        (self._given_up if name in self.outputs else self._dropped).add(name)

    def is_awaited(self, request_id: str, choice: int) -> bool:
        """Whether somebody wished for a choice and nobody called it off."""
        name = member_name(request_id, choice)
        wanted = name in self._wanted and name not in self._dropped
        return wanted and request_id not in self._ended

    def late(self, request_id: str, parent: str) -> list[int]:
        """Choices that begin now that `parent` has sampled, if it was given up."""
        if parent not in self._given_up:
            return []
        return [
            choice
            for name, (beginner, choice) in self._wanted.items()
            if beginner == parent
            and name not in self.outputs
            and self.is_awaited(request_id, choice)
        ]

    def expected(
        self,
        name: str,
        prompt: Sequence[int],
        sampling: SamplingParams,
        max_tokens: int,
        vocab_size: int,
        adapter: str = "",
    ) -> tuple[list[int], bool]:
        """What a member must have produced at its end, and whether a stop token ends it."""
        inherited = self.outputs[name][: self._inherited[name]]
        output = [
            *inherited,
            *witness_generate(
                (*prompt, *inherited),
                max_tokens - len(inherited),
                vocab_size,
                sampling.stop_token_ids,
                sampling.min_tokens - len(inherited),
                self.choices[name],
                adapter,
            ),
        ]
        stopped = output[-1] in sampling.stop_token_ids and len(output) >= sampling.min_tokens
        return output, stopped
