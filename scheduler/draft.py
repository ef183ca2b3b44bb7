"""A step plan while it is being made: columns that grow, then are sealed into a `StepPlan`.

Keeps the requests behind the rows, which the plan itself does not name, for the commit.
"""

from collections.abc import Iterator

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

    def counts(self) -> Iterator[tuple[Request, int]]:
        """Each row's request, and the tokens that it computes."""
        return zip(self.rows, self._counts, strict=True)

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
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
        return StepPlan(
            step=self.step,
            forgotten=forgotten,
            admitted=tuple(self._admitted),
            grants=tuple(self._grants),
            handles=tuple(self._handles),
            starts=tuple(self._starts),
            counts=tuple(self._counts),
            samples=tuple(self._samples),
            token_ids=tuple(self._token_ids),
            forks=tuple(self._forks),
            replacements=replacements,
            copies=copies,
            swap_outs=swap_outs,
            swap_ins=swap_ins,
        )
