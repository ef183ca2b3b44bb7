"""What plans have said about one handle: its block table, its parameters, how far it is written.

Grows with every plan; knows no other handle and no tensors on a device. Units: tokens, block ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blockyard.scheduler.plan import Fork, num_right
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.batch_parts import PromptRow
from blockyard.workers.guesses import GuessedRow
from blockyard.workers.logit_rules import LogitRules
from blockyard.workers.sampler import SampleRow

__all__ = ["HandleState", "PlanError"]

_FIRST_TABLE_BLOCKS = 8


class PlanError(Exception):
    """A plan contradicts what earlier plans said; scheduler and worker have parted."""


@dataclass(slots=True)
class HandleState:
    """What is remembered of one handle.

    Attributes:
        handle: its name.
        sampling: the request's parameters.
        prompt_tokens: length of the client's prompt.
        rules: what the request changes in its scores, if anything.
        prompt: all of its prompt, when that is scored.
        adapter: id of the adapter that its tokens are computed with; empty for none.
        table: int32, blocks by position; `num_blocks` of them mean something.
        written: tokens computed so far, guesses included; None before its first step.
        guessed: how many of them were guesses of the last step that may be wrong.
        sampled: the token sampled last, if any; it belongs at position `sampled_at`.
    """

    handle: int
    sampling: SamplingParams
    prompt_tokens: int
    rules: LogitRules | None = None
    prompt: tuple[int, ...] = ()
    adapter: str = ""
    table: npt.NDArray[np.int32] = field(
        default_factory=lambda: np.zeros(_FIRST_TABLE_BLOCKS, dtype=np.int32)
    )
    num_blocks: int = 0
    written: int | None = None
    guessed: int = 0
    sampled: int | None = None
    sampled_at: int = 0

    def extend(self, block_ids: Sequence[int]) -> None:
        """Append blocks to the table."""
        needed = self.num_blocks + len(block_ids)
        if needed > len(self.table):
            grown = np.zeros(max(needed, 2 * len(self.table)), dtype=np.int32)
            grown[: self.num_blocks] = self.table[: self.num_blocks]
            self.table = grown
        self.table[self.num_blocks : needed] = block_ids
        self.num_blocks = needed

    def child(self, fork: Fork) -> "HandleState":
        """The state of a fork: what this handle has, under parameters of its own."""
        return HandleState(
            fork.handle,
            fork.sampling,
            fork.prompt_tokens,
            self.rules.child(fork.sampling) if self.rules is not None else None,
            adapter=self.adapter,
            table=self.table.copy(),
            num_blocks=self.num_blocks,
            written=self.written,
        )

    def advance(self, step: int, start: int, count: int, block_size: int, guessed: int = 0) -> None:
        """Book that `step` computes `count` tokens from position `start`, the last `guessed` ones.

        A fresh handle may start past 0: positions before it come from blocks others filled. After
        guesses it goes on behind those that were right.

        Raises:
            PlanError: tokens are left out, computed twice, or past the blocks.
        """
        if self.written is not None and not 0 <= self.written - start <= self.guessed:
            raise PlanError(
                f"step {step} computes handle {self.handle} from position {start}, "
                f"but {self.written} tokens are written"
            )
        slots = self.num_blocks * block_size
        if start < 0 or start + count > slots:
            raise PlanError(
                f"step {step} computes positions {start}..{start + count - 1} of handle "
                f"{self.handle}, whose blocks hold {slots}"
            )
        self.written = start + count
        self.guessed = guessed

    def note_right(self, guessed: GuessedRow, sampled: Sequence[int]) -> None:
        """Go on behind right guesses; `sampled` is what followed the tokens of the row."""
        right = num_right(guessed.token_ids, sampled)
        if self.rules is not None:
            self.rules.record(guessed.position, guessed.token_ids[:right])
        self.written = guessed.position + right
        self.guessed = 0
        self.note_sampled(sampled[right])

    def note_sampled(self, token: int) -> None:
        """Keep the token just sampled: the next plan may be made where it is not known yet."""
        self.sampled, self.sampled_at = token, self.written or 0

    def last_sampled(self, step: int, start: int) -> int:
        """The token that `step` awaits at position `start`.

        Raises:
            PlanError: another one, or none, was sampled last.
        """
        if self.sampled is None or self.sampled_at != start:
            raise PlanError(
                f"step {step} awaits the token at {start} of handle {self.handle}, which was not "
                "sampled"
            )
        return self.sampled

    def scored(self, start: int, count: int) -> PromptRow | None:
        """The prompt's tokens that follow those of this step, when they are to be scored."""
        targets = self.prompt[start + 1 : start + count + 1]
        top = self.sampling.prompt_logprobs
        if not targets or top is None:
            return None
        return PromptRow(self.handle, start + 1, targets, top)

    def sample_rows(self) -> tuple[SampleRow, ...]:
        """How the token after those written is sampled; before it those from the first guess on.

        All have the rules as they are without guesses.
        """
        written = self.written or 0
        return tuple(
            SampleRow(self.sampling, position, position - self.prompt_tokens, self.rules)
            for position in range(written - self.guessed, written + 1)
        )
