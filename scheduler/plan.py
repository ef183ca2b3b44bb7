"""What goes to a step and what comes back: frozen values, the same for every rank.

A plan speaks in differences. Workers remember, for each *handle*, its block table and sampling
parameters; a plan admits new handles whole, extends tables of known ones, and tells which to
forget. A handle is given anew at every admission, so nothing said about an old one can be taken
for a new one. The columns `handles`, `starts`, `counts`, `samples` are parallel: one entry for
each request in the step.

A plan may be made while the step before it runs. What that step samples for a request is not
known then: in its place the plan has `PLACEHOLDER`, and workers, who keep the token that they
sampled last for each handle, fill it in. A guess that is theirs to make, by a draft model, is
`GUESS` in the plan, and told with the result.

Blocks move by `swap_outs`, `copies` and `swap_ins`, in this order and before anything of the step
is computed, so a block may be given to a new owner in the very step that first saves it. A plan
may move blocks and compute nothing.

Units: tokens and block ids; positions count from 0 within a request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from blockyard.scheduler.sampling import SamplingParams, TokenLogprobs

__all__ = [
    "GUESS",
    "NOTHING_LEFT",
    "PLACEHOLDER",
    "Admission",
    "BlockCopy",
    "BlockGrant",
    "Fork",
    "PromptLogprobs",
    "Replacement",
    "RowError",
    "StepPlan",
    "StepResult",
    "guesses_told",
    "num_right",
]

PLACEHOLDER = -1
"""Among a plan's tokens: the one that its handle sampled last, in the step before."""

GUESS = -2
"""Among a plan's guesses: one that the workers' draft model makes, in this step, before it is
checked."""


class Admission(NamedTuple):
    """A request the workers do not know yet (or were told to forget).

    `prompt_tokens` is the length of the client's prompt; tokens computed past it were generated
    before a preemption. With it a worker knows how many tokens were produced at any position.
    `token_ids` are all tokens known so far where `sampling.reads_history`, else none: of tokens
    whose KV is there already no plan would tell. `adapter` is the id of the adapter that all of its
    rows, and those of its forks, are computed with; empty for the base model.
    """

    handle: int
    sampling: SamplingParams
    prompt_tokens: int
    token_ids: tuple[int, ...] = ()
    adapter: str = ""


class BlockGrant(NamedTuple):
    """Blocks appended to the end of a handle's block table."""

    handle: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fork:
    """A new handle that continues another one's tokens: one prefill, many tails.

    The parent is in this step and samples. The child takes the parent's block table as it is
    after this step's grants, and everything the parent has written with this step; nothing is
    copied. Its first token is sampled from the logits of the parent's row, with its own
    parameters.
    """

    parent: int
    handle: int
    sampling: SamplingParams
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Replacement:
    """Entry `index` of a handle's block table becomes `block_id`."""

    handle: int
    index: int
    block_id: int


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A whole block, all layers of every rank. Which side is on the host depends on the column."""

    source: int
    destination: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass of a group.

    Order of effects in a worker: forget, admit, replace, grant, swap out, copy, swap in, compute,
    fork. Since entries are replaced first, the block that leaves one may be granted anew at once.

    Attributes:
        step: number of this step, counting from 1.
        forgotten: handles whose state workers drop.
        admitted: new handles.
        grants: blocks appended to tables.
        handles: requests in this step, in batch order.
        starts: position of each request's first token in this step.
        counts: tokens computed for each request in this step, at least 1.
        samples: whether the last computed token's logits are sampled.
        token_ids: the tokens to compute, all requests one after the other; sum(counts) of them. A
            `PLACEHOLDER` is the only token of its request.
        forks: children of requests that sample in this step.
        replacements: changes of single table entries.
        swap_outs: device blocks (source) saved in host blocks (destination).
        copies: device blocks copied to device blocks.
        swap_ins: host blocks (source) brought back into device blocks (destination).
        guesses: for each request how many tokens at its end are guesses. What follows each of
            them is sampled too, besides what follows the token before them. Empty without any.
    """

    step: int
    forgotten: tuple[int, ...]
    admitted: tuple[Admission, ...]
    grants: tuple[BlockGrant, ...]
    handles: tuple[int, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    samples: tuple[bool, ...]
    token_ids: tuple[int, ...]
    forks: tuple[Fork, ...] = ()
    replacements: tuple[Replacement, ...] = ()
    swap_outs: tuple[BlockCopy, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    swap_ins: tuple[BlockCopy, ...] = ()
    guesses: tuple[int, ...] = ()

    @property
    def num_samples(self) -> int:
        """Tokens that the result carries: one for each sampled row, each guess and each fork."""
        return sum(self.samples) + sum(self.guesses) + len(self.forks)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Index of each request's first token in `token_ids`."""
        return (0, *accumulate(self.counts[:-1])) if self.counts else ()

    def check(self) -> None:
        """Prove that the columns agree with one another."""
        rows = len(self.handles)
        if not rows == len(self.starts) == len(self.counts) == len(self.samples):
            raise AssertionError(f"step {self.step}: columns of different lengths")
        if len(set(self.handles)) != rows:
            raise AssertionError(f"step {self.step}: a handle appears twice")
        if any(count < 1 for count in self.counts):
            raise AssertionError(f"step {self.step}: a request computes no token")
        if sum(self.counts) != len(self.token_ids):
            raise AssertionError(
                f"step {self.step}: counts add up to {sum(self.counts)}, "
                f"but {len(self.token_ids)} tokens are given"
            )
        if PLACEHOLDER in self.token_ids:
            for handle, offset, count in zip(self.handles, self.offsets, self.counts, strict=True):
                if count > 1 and PLACEHOLDER in self.token_ids[offset : offset + count]:
                    raise AssertionError(
                        f"step {self.step}: handle {handle} awaits a token beside others"
                    )
        sampled = {h for h, samples in zip(self.handles, self.samples, strict=True) if samples}
        for fork in self.forks:
            if fork.parent not in sampled:
                raise AssertionError(
                    f"step {self.step}: handle {fork.handle} forks from {fork.parent}, "
                    "which does not sample"
                )
        if GUESS in self.token_ids:
            columns = self.offsets, self.counts, self.guesses or (0,) * rows
            for offset, count, guessed in zip(*columns, strict=True):
                if GUESS in self.token_ids[offset : offset + count - guessed]:
                    raise AssertionError(f"step {self.step}: what is to be guessed is no guess")
        if self.guesses:
            self._check_guesses()

    def _check_guesses(self) -> None:
        parents = {fork.parent for fork in self.forks}
        columns = self.handles, self.samples, self.counts, self.guesses
        for handle, samples, count, guessed in zip(*columns, strict=True):
            if guessed and (not samples or not 0 < guessed < count or handle in parents):
                raise AssertionError(
                    f"step {self.step}: handle {handle} checks {guessed} guesses among {count} "
                    "tokens; it must sample, know a token before them, and fork no other"
                )


def num_right(guesses: Sequence[int], sampled: Sequence[int]) -> int:
    """How many guesses are right: those before the first that differs from what is sampled there.

    `sampled` is what follows the token before the guesses, then what follows each of them.
    """
    for place, guess in enumerate(guesses):
        if sampled[place] != guess:
            return place
    return len(guesses)


def guesses_told(plan: StepPlan, result: "StepResult") -> StepPlan:
    """The plan with the guesses that workers have made in their places.

    Raises:
        ValueError: not as many as it left open.
    """
    if GUESS not in plan.token_ids:
        return plan
    made = iter(result.guesses)
    filled = tuple(next(made, GUESS) if t == GUESS else t for t in plan.token_ids)
    if GUESS in filled or next(made, None) is not None:
        raise ValueError(
            f"step {plan.step} leaves {plan.token_ids.count(GUESS)} guesses to workers, its "
            f"result has {len(result.guesses)}"
        )
    return replace(plan, token_ids=filled)


NOTHING_LEFT = "no token is left to choose from: bias, allowed tokens and bad words leave out all"
"""The message of a row error that is the client's own doing."""


@dataclass(frozen=True, slots=True)
class RowError:
    """Sampling failed for one request only; the others of the step are good."""

    handle: int
    message: str


class PromptLogprobs(NamedTuple):
    """What the model thought of some of a prompt's tokens, from `position` on.

    The first token of a prompt has no entry: nothing comes before it.
    """

    handle: int
    position: int
    entries: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What rank 0 answers.

    Attributes:
        step: the plan's number.
        token_ids: one token for each entry of the plan with `samples` true, in plan order, each
            followed by one for each of its guesses; then one for each fork, in plan order. Under a
            handle named in `errors` a value means nothing; where that handle has guesses, the one
            that could not be sampled is negative.
        errors: requests whose logits could not be sampled.
        compute_seconds: time the worker spent in the step, copies left out.
        copy_seconds: time it took to move blocks to and from the host, of moves that have ended
            since the result before.
        moved_blocks: how many these were.
        moving: whether moves of this step, or of one before, have not ended: its rank has not
            finished it yet, and acknowledges it later.
        sample_seconds: the part of `compute_seconds` that went to choosing tokens.
        guesses: one token for each `GUESS` of the plan, in plan order.
        logprobs: one for each of `token_ids`, None where not wanted; empty when nobody wants any.
        prompt_logprobs: of prompts that want them, for the tokens after those computed.
    """

    step: int
    token_ids: tuple[int, ...]
    errors: tuple[RowError, ...] = ()
    compute_seconds: float = 0.0
    copy_seconds: float = 0.0
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    sample_seconds: float = 0.0
    guesses: tuple[int, ...] = ()
    moved_blocks: int = 0
    moving: bool = False
