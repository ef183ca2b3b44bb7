"""What goes to a step and what comes back: frozen values, the same for every rank.

A plan speaks in differences. Workers remember, for each *handle*, its block table and sampling
parameters; a plan admits new handles whole, extends tables of known ones, and tells which to
forget. A handle is given anew at every admission, so nothing said about an old one can be taken
for a new one. The columns `handles`, `starts`, `counts`, `samples` are parallel: one entry for
each request in the step.

Units: tokens and block ids; positions count from 0 within a request.
"""

from dataclasses import dataclass
from itertools import accumulate

from blockyard.scheduler.sampling import SamplingParams

__all__ = ["Admission", "BlockGrant", "RowError", "StepPlan", "StepResult"]


@dataclass(frozen=True, slots=True)
class Admission:
    """A request the workers do not know yet (or were told to forget).

    `prompt_tokens` is the length of the client's prompt; tokens computed past it were generated
    before a preemption. With it a worker knows how many tokens were produced at any position.
    """

    handle: int
    sampling: SamplingParams
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class BlockGrant:
    """Blocks appended to the end of a handle's block table."""

    handle: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass of a group.

    Order of effects in a worker: forget, admit, grant, compute.

    Attributes:
        step: number of this step, counting from 1.
        forgotten: handles whose state workers drop.
        admitted: new handles.
        grants: blocks appended to tables.
        handles: requests in this step, in batch order.
        starts: position of each request's first token in this step.
        counts: tokens computed for each request in this step, at least 1.
        samples: whether the last computed token's logits are sampled.
        token_ids: the tokens to compute, all requests one after the other; sum(counts) of them.
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


@dataclass(frozen=True, slots=True)
class RowError:
    """Sampling failed for one request only; the others of the step are good."""

    handle: int
    message: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """What rank 0 answers.

    Attributes:
        step: the plan's number.
        token_ids: one token for each entry of the plan with `samples` true, in plan order. Under a
            handle named in `errors` the value means nothing.
        errors: requests whose logits could not be sampled.
        compute_seconds: time the worker spent in the step.
    """

    step: int
    token_ids: tuple[int, ...]
    errors: tuple[RowError, ...] = ()
    compute_seconds: float = 0.0
