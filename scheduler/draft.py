"""A step plan while it is being made: columns that grow, then are sealed into a `StepPlan`.

Keeps the requests behind the rows, which the plan itself does not name, for the commit.
"""

from collections.abc import Iterator
from operator import add

from blockyard.scheduler.plan import (
    PLACEHOLDER,
    Admission,
    BlockCopy,
    BlockGrant,
    Fork,
    Replacement,
    StepPlan,
)
from blockyard.scheduler.request import Request

__all__ = ["PlanDraft"]


class PlanDraft:
    """Rows of the coming step, in batch order."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.rows: list[Request] = []
        self.num_decodes = 0
        """Rows that compute one generated token."""
        self.children: list[tuple[Request, int, int]] = []
        """Members to come: parent, choice and handle."""
        self.num_recomputed = 0
        """Tokens that were computed before and lost."""
        self._admitted: list[Admission] = []
        self._grants: list[BlockGrant] = []
        self._handles: list[int] = []
        self._starts: list[int] = []
        self._counts: list[int] = []
        self._samples: list[bool] = []
        self._token_ids: list[int] = []
        self._forks: list[Fork] = []
        self._guesses: dict[int, tuple[int, ...]] = {}

    def admit(self, request: Request, handle: int) -> None:
        """Make the request known to the workers under a new handle, with the blocks it holds."""
        request.handle = handle
        sampling = request.sampling
        known = tuple(request.tokens) if sampling.reads_history else ()
        self._admitted.append(Admission(handle, sampling, request.num_prompt, known))
        if request.table.block_ids:
            self._grants.append(BlockGrant(handle, tuple(request.table.block_ids)))

    def add(self, request: Request, count: int, block_ids: tuple[int, ...]) -> None:
        """Let an admitted request compute `count` tokens, with new blocks at its table's end."""
        handle = request.handle
        if handle is None:
            raise ValueError(f"request {request.request_id!r} is planned but was not admitted")
        if block_ids:
            request.table.extend(block_ids)
            self._grants.append(BlockGrant(handle, block_ids))
        tokens = request.tokens
        start = request.num_planned
        end = start + count
        samples = end == request.num_known
        self.num_decodes += count == 1 and start >= request.num_prompt
        self.num_recomputed += max(0, min(end, request.num_lost) - start)
        request.num_promised += count
        request.last_step = self.step
        self.rows.append(request)
        self._handles.append(handle)
        self._starts.append(start)
        self._counts.append(count)
        self._samples.append(samples)
        if start == len(tokens):
            self._token_ids.append(PLACEHOLDER)
        else:
            self._token_ids.extend(tokens[start:end])

    def add_decodes(
        self, requests: list[Request], handles: list[int], starts: list[int], token_ids: list[int]
    ) -> None:
        """`add` for many usual rows: the newest token alone, in a slot that is there.

        Whoever finds them has set `num_promised` and `last_step`: this is on the path of every
        row of every step.
        """
        count = len(requests)
        self.num_decodes += count
        self.rows += requests
        self._handles += handles
        self._starts += starts
        self._counts += (1,) * count
        self._samples += (True,) * count
        self._token_ids += token_ids

    @property
    def newest_samples(self) -> bool:
        """Whether the row added last samples."""
        return self._samples[-1]

    def fork(self, request: Request, choice: int, handle: int) -> int:
        """Let a row that samples begin another choice; returns the row's own handle."""
        if request.handle is None or not self._samples[-1] or self.rows[-1] is not request:
            raise ValueError(f"request {request.request_id!r} forks but does not sample now")
        sampling = request.sampling_of(choice)
        self._forks.append(Fork(request.handle, handle, sampling, request.num_prompt))
        self.children.append((request, choice, handle))
        return request.handle

    def charges(self, first: int) -> Iterator[tuple[Request, int, int]]:
        """From row `first` on: the request, and how many tokens it prefills and decodes."""
        rows = zip(self.rows[first:], self._starts[first:], self._counts[first:], strict=True)
        for request, start, count in rows:
            decodes = count == 1 and start >= request.num_prompt
            yield request, 0 if decodes else count, int(decodes)

    def decodes(self) -> list[tuple[int, Request]]:
        """Rows that compute one generated token, which is known, and begin no other choice."""
        parents = {fork.parent for fork in self._forks}
        columns = zip(self.rows, self._handles, self._starts, self._counts, strict=True)
        return [
            (row, request)
            for row, (request, handle, start, count) in enumerate(columns)
            if count == 1
            and request.num_prompt <= start == len(request.tokens) - 1
            and handle not in parents
        ]

    def guess(self, row: int, token_ids: tuple[int, ...]) -> None:
        """Let a row that decodes check guesses of what comes next."""
        self._guesses[row] = token_ids
        self.rows[row].num_promised += len(token_ids)

    def counts(self) -> Iterator[tuple[Request, int, int]]:
        """Each row's request, the tokens that it computes, and how many of them are guesses."""
        for row, (request, count) in enumerate(zip(self.rows, self._counts, strict=True)):
            guessed = len(self._guesses.get(row, ()))
            yield request, count + guessed, guessed

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes, guesses left out."""
        return len(self._token_ids)

    def seal(
        self,
        forgotten: tuple[int, ...],
        replacements: tuple[Replacement, ...],
        copies: tuple[BlockCopy, ...],
        swap_outs: tuple[BlockCopy, ...],
        swap_ins: tuple[BlockCopy, ...],
    ) -> StepPlan:
        """The finished plan."""
        token_ids, counts = self._token_ids, self._counts
        guesses: tuple[int, ...] = ()
        if self._guesses:
            token_ids, counts, guesses = self._with_guesses()
        return StepPlan(
            step=self.step,
            forgotten=forgotten,
            admitted=tuple(self._admitted),
            grants=tuple(self._grants),
            handles=tuple(self._handles),
            starts=tuple(self._starts),
            counts=tuple(counts),
            samples=tuple(self._samples),
            token_ids=tuple(token_ids),
            forks=tuple(self._forks),
            replacements=replacements,
            copies=copies,
            swap_outs=swap_outs,
            swap_ins=swap_ins,
            guesses=guesses,
        )

    def _with_guesses(self) -> tuple[list[int], list[int], tuple[int, ...]]:
        """Tokens and counts with guesses behind the tokens of their rows; how many each has."""
        guesses = [self._guesses.get(row, ()) for row in range(len(self.rows))]
        token_ids: list[int] = []
        begin = 0
        for count, guessed in zip(self._counts, guesses, strict=True):
            token_ids += self._token_ids[begin : begin + count]
            token_ids += guessed
            begin += count
        numbers = tuple(map(len, guesses))
        return token_ids, list(map(add, self._counts, numbers)), numbers
