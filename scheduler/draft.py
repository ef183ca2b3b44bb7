"""A step plan while it is being made: columns that grow, then are sealed into a `StepPlan`.

Keeps the requests behind the rows, which the plan itself does not name, for the commit.
"""

from collections.abc import Iterator, Sequence
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
from blockyard.scheduler.stride import Stride

__all__ = ["PlanDraft"]


class PlanDraft:
    """Rows of the coming step, in batch order: those in lockstep, then the others."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.stride: Stride | None = None
        """Rows in lockstep, if there are any."""
        self.rows: list[Request] = []
        """The others."""
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
        adapter = request.spec.extras.adapter_id
        self._admitted.append(Admission(handle, sampling, request.num_prompt, known, adapter))
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
        samples = end == max(len(tokens), start + 1)
        self.num_decodes += count == 1 and start >= request.num_prompt
        if request.num_lost > start:
            self.num_recomputed += min(end, request.num_lost) - start
        request.promise(count, self.step)
        self.rows.append(request)
        self._handles.append(handle)
        self._starts.append(start)
        self._counts.append(count)
        self._samples.append(samples)
        if start == len(tokens):
            self._token_ids.append(PLACEHOLDER)
        else:
            self._token_ids.extend(tokens[start:end])

    def grant(self, requests: Sequence[Request], block_ids: Sequence[int]) -> None:
        """Append one new block to the table of each of these, who are known to the workers."""
        for request, block_id in zip(requests, block_ids, strict=True):
            request.table.append(block_id)
        handles = [request.handle for request in requests if request.handle is not None]
        self._grants += map(BlockGrant, handles, zip(block_ids))

    def lead(self, stride: Stride) -> None:
        """Let everybody in lockstep compute the newest token, ahead of the other rows."""
        self.stride = stride
        self.num_decodes += len(stride.starts)

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
        """Who prefills and decodes how many tokens, from the row `first` out of lockstep on."""
        rows = zip(self.rows[first:], self._starts[first:], self._counts[first:], strict=True)
        for request, start, count in rows:
            decodes = count == 1 and start >= request.num_prompt
            yield request, 0 if decodes else count, int(decodes)

    def decodes(self) -> list[tuple[int, Request]]:
        """Rows that compute one generated token, which is known, and begin no other choice.

        Beams of a search are left out: what comes after their next token depends on the others.
        """
        parents = {fork.parent for fork in self._forks}
        columns = zip(self.rows, self._handles, self._starts, self._counts, strict=True)
        return [
            (row, request)
            for row, (request, handle, start, count) in enumerate(columns)
            if count == 1
            and request.num_prompt <= start == len(request.tokens) - 1
            and handle not in parents
            and not request.sampling.searches
        ]

    def guess(self, row: int, token_ids: tuple[int, ...]) -> None:
        """Let a row that decodes check guesses of what comes next."""
        self._guesses[row] = token_ids
        self.rows[row].num_promised += len(token_ids)

    def members(self) -> tuple[Request, ...]:
        """The request behind each row, until the step is committed."""
        led = self.stride.rows.requests if self.stride is not None else []
        return (*led, *self.rows)

    def counts(self) -> Iterator[tuple[Request, int, int]]:
        """Each row's request, the tokens that it computes, and how many of them are guesses."""
        if self.stride is not None:
            for request in self.stride.rows.requests:
                yield request, 1, 0
        for row, (request, count) in enumerate(zip(self.rows, self._counts, strict=True)):
            guessed = len(self._guesses.get(row, ()))
            yield request, count + guessed, guessed

    @property
    def num_led(self) -> int:
        """Rows in lockstep, each of one token."""
        return len(self.stride.starts) if self.stride is not None else 0

    @property
    def num_rows(self) -> int:
        """Requests that take part."""
        return self.num_led + len(self.rows)

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes, guesses left out."""
        return self.num_led + len(self._token_ids)

    def seal(
        self,
        forgotten: tuple[int, ...],
        replacements: tuple[Replacement, ...],
        copies: tuple[BlockCopy, ...],
        swap_outs: tuple[BlockCopy, ...],
        swap_ins: tuple[BlockCopy, ...],
    ) -> StepPlan:
        """The finished plan."""
        handles: tuple[int, ...] = ()
        starts, led, guesses = handles, handles, handles
        if self.stride is not None:
            handles, starts = self.stride.handles, self.stride.starts
            led = self.stride.token_ids
        token_ids, counts = self._token_ids, self._counts
        if self._guesses:
            token_ids, counts, guesses = self._with_guesses()
        return StepPlan(
            step=self.step,
            forgotten=forgotten,
            admitted=tuple(self._admitted),
            grants=tuple(self._grants),
            handles=handles + tuple(self._handles),
            starts=starts + tuple(self._starts),
            counts=(1,) * self.num_led + tuple(counts),
            samples=(True,) * self.num_led + tuple(self._samples),
            token_ids=led + tuple(token_ids),
            forks=tuple(self._forks),
            replacements=replacements,
            copies=copies,
            swap_outs=swap_outs,
            swap_ins=swap_ins,
            guesses=guesses,
        )

    def _with_guesses(self) -> tuple[list[int], list[int], tuple[int, ...]]:
        """Tokens and counts with guesses behind the tokens of their rows; how many each has.

        Rows that check guesses are planned one by one: there are none in lockstep.
        """
        guesses = [self._guesses.get(row, ()) for row in range(len(self.rows))]
        token_ids: list[int] = []
        begin = 0
        for count, guessed in zip(self._counts, guesses, strict=True):
            token_ids += self._token_ids[begin : begin + count]
            token_ids += guessed
            begin += count
        numbers = tuple(map(len, guesses))
        return token_ids, list(map(add, self._counts, numbers)), numbers
