"""Turns step plans, which speak in differences, into the flat tensors of one forward pass.

Remembers for each handle what earlier plans said: block table, sampling parameters, how many
tokens are written. Runs no model. Units: tokens, block ids; slot = block id * block size + offset.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from blockyard.cuda.backend import AttentionBatch
from blockyard.scheduler.plan import (
    GUESS,
    PLACEHOLDER,
    Admission,
    BlockGrant,
    Fork,
    Replacement,
    StepPlan,
)
from blockyard.workers.batch_parts import PromptRow, RuleTokens, rule_tokens
from blockyard.workers.collectives import Communicator
from blockyard.workers.grammar import GrammarCompiler
from blockyard.workers.guesses import GuessedRow
from blockyard.workers.handle_state import HandleState, PlanError
from blockyard.workers.logit_rules import rules_for
from blockyard.workers.sampler import SampleRow
from blockyard.workers.token_places import place_tokens

__all__ = ["BatchBuilder", "FlatBatch"]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """One step as tensors on the device.

    Attributes:
        input_ids, positions: int64 `[tokens]`, all requests one after the other.
        attention: where each token's KV goes and what it may see.
        sample_tokens: int64 `[logits]`, index of each token whose logits are needed: of rows that
            are sampled first, then of `prompt_rows`.
        sample_rows: how each new token is sampled: one for each row that is sampled, then one for
            each fork.
        sample_handles: whose the new tokens are.
        sample_logits: int64 `[samples]`, which of the logits each new token is sampled from; None
            without forks, when each has its own.
        rule_tokens: what rules must be told before anything is sampled.
        guessed: rows that check guesses; each has several sample rows, whose rules know none of
            the guesses yet.
        prompt_rows: parts of prompts that are scored.
        adapters: id of each request's adapter, empty without one.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    attention: AttentionBatch
    sample_tokens: torch.Tensor
    sample_rows: tuple[SampleRow, ...]
    sample_handles: tuple[int, ...]
    sample_logits: torch.Tensor | None = None
    rule_tokens: tuple[RuleTokens, ...] = ()
    prompt_rows: tuple[PromptRow, ...] = ()
    guessed: tuple[GuessedRow, ...] = ()
    adapters: tuple[str, ...] = ()


class BatchBuilder:
    """Applies plans in order and flattens them.

    Args:
        num_blocks: blocks in the pool; every granted id is below it.
        block_size: token slots in a block.
        vocab_size: every token id is below it.
        device: where the tensors go.
        grammars: for requests whose answers must keep to one.
        communicator: tells tokens that rank 0 has sampled to the others; None: there are none.
        drafts: whether plans may leave guesses open, which are tokens 0 of a batch until made.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        device: torch.device,
        grammars: GrammarCompiler | None = None,
        communicator: Communicator | None = None,
        drafts: bool = False,
    ) -> None:
        self._drafts = drafts
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._device = device
        self._on_cpu = device.type == "cpu"
        self._make_rules = partial(
            rules_for, vocabulary=vocab_size, device=device, grammars=grammars
        )
        self._communicator = communicator if communicator is not None else Communicator()
        self._handles: dict[int, HandleState] = {}
        self._last_step = 0

    def apply(self, plan: StepPlan) -> FlatBatch | None:
        """Take in a plan's differences; the flat batch, or None when it computes nothing.

        Raises:
            PlanError: the plan cannot follow the ones before it.
        """
        if plan.step <= self._last_step:
            raise PlanError(f"step {plan.step} comes after step {self._last_step}")
        self._last_step = plan.step
        plan.check()
        for handle in plan.forgotten:
            if self._handles.pop(handle, None) is None:
                raise PlanError(f"step {plan.step} forgets handle {handle}, which is not known")
        for admission in plan.admitted:
            self._admit(plan, admission)
        for replacement in plan.replacements:
            self._replace(plan, replacement)
        for grant in plan.grants:
            self._grant(plan, grant)
        return self._flatten(plan) if plan.handles else None

    def note_sampled(self, batch: FlatBatch, token_ids: Sequence[int]) -> None:
        """Keep the tokens just sampled: the next plan may be made before they are known there."""
        for handle, token in zip(batch.sample_handles, token_ids, strict=True):
            self._handles[handle].note_sampled(token)
        for row in batch.guessed:
            self._handles[row.handle].note_right(row, token_ids[row.first : row.end])

    def _admit(self, plan: StepPlan, admission: Admission) -> None:
        if admission.handle in self._handles:
            raise PlanError(f"step {plan.step} admits handle {admission.handle} a second time")
        sampling, known = admission.sampling, admission.token_ids
        self._handles[admission.handle] = HandleState(
            admission.handle,
            sampling,
            admission.prompt_tokens,
            self._make_rules(sampling, admission.prompt_tokens, known),
            known[: admission.prompt_tokens] if sampling.prompt_logprobs is not None else (),
            admission.adapter,
        )

    def _grant(self, plan: StepPlan, grant: BlockGrant) -> None:
        state = self._known(plan, grant.handle)
        for block_id in grant.block_ids:
            self._check_block(plan, "grants", block_id, grant.handle)
        state.extend(grant.block_ids)

    def _replace(self, plan: StepPlan, replacement: Replacement) -> None:
        state = self._known(plan, replacement.handle)
        if not 0 <= replacement.index < state.num_blocks:
            raise PlanError(
                f"step {plan.step} replaces entry {replacement.index} of handle "
                f"{replacement.handle}, whose table has {state.num_blocks}"
            )
        self._check_block(plan, "gives", replacement.block_id, replacement.handle)
        state.table[replacement.index] = replacement.block_id

    def _check_block(self, plan: StepPlan, verb: str, block_id: int, handle: int) -> None:
        if not 0 <= block_id < self._num_blocks:
            raise PlanError(
                f"step {plan.step} {verb} block {block_id} to handle {handle}; "
                f"the pool has {self._num_blocks}"
            )

    def _known(self, plan: StepPlan, handle: int) -> HandleState:
        state = self._handles.get(handle)
        if state is None:
            raise PlanError(f"step {plan.step} names handle {handle}, which is not known")
        return state

    def _flatten(self, plan: StepPlan) -> FlatBatch:
        states = [self._known(plan, handle) for handle in plan.handles]
        guesses = plan.guesses or (0,) * len(states)
        for state, start, count, guessed in zip(
            states, plan.starts, plan.counts, guesses, strict=True
        ):
            state.advance(plan.step, start, count, self._block_size, guessed)
        starts = np.array(plan.starts, dtype=np.int32)
        counts = np.array(plan.counts, dtype=np.int32)
        tables = np.zeros((len(states), max(s.num_blocks for s in states)), dtype=np.int32)
        for row, state in enumerate(states):
            tables[row, : state.num_blocks] = state.table[: state.num_blocks]
        positions, slots, ends = place_tokens(plan, tables, self._block_size)
        input_ids = self._fill(plan, states, np.array(plan.token_ids, dtype=np.int64))
        if self._drafts and plan.guesses:
            if plan.token_ids.count(GUESS) != sum(plan.guesses):
                raise PlanError(f"step {plan.step} brings guesses; a draft model makes them here")
            input_ids[input_ids == GUESS] = 0
        if input_ids.min() < 0 or input_ids.max() >= self._vocab_size:
            raise PlanError(f"step {plan.step} holds a token id outside 0..{self._vocab_size - 1}")
        sampled = [row for row, wanted in enumerate(plan.samples) if wanted]
        scored, prompt_rows = self._score(plan, states)
        children = [self._fork(plan, fork) for fork in plan.forks]
        # Behind each token of these something is sampled: the last of a row, and before guesses.
        places = [
            place for row in sampled for place in range(ends[row] - guesses[row] - 1, ends[row])
        ]
        handles = [plan.handles[row] for row in sampled for _ in range(guesses[row] + 1)]
        parents = {handle: index for index, handle in enumerate(handles)}
        origins = [*range(len(places)), *(parents[fork.parent] for fork in plan.forks)]
        return FlatBatch(
            input_ids=self._tensor(input_ids),
            positions=self._tensor(positions),
            attention=AttentionBatch(
                counts=counts,
                lengths=starts + counts,
                block_tables=self._tensor(tables),
                slots=self._tensor(slots),
                block_size=self._block_size,
                host_tables=tables,
            ),
            sample_tokens=self._tensor(np.array([*places, *scored], dtype=np.int64)),
            sample_rows=tuple(
                row
                for state in (*(states[row] for row in sampled), *children)
                for row in state.sample_rows()
            ),
            sample_handles=(*handles, *(fork.handle for fork in plan.forks)),
            sample_logits=self._tensor(np.array(origins, dtype=np.int64)) if children else None,
            rule_tokens=rule_tokens(
                plan,
                input_ids,
                [state.rules for state in states],
                [child.rules for child in children],
            ),
            prompt_rows=prompt_rows,
            guessed=_guessed(plan, handles) if plan.guesses else (),
            adapters=tuple(state.adapter for state in states),
        )

    def _score(
        self, plan: StepPlan, states: list[HandleState]
    ) -> tuple[list[int], tuple[PromptRow, ...]]:
        """Tokens whose logits score prompts, and what is scored with them."""
        rows: list[PromptRow] = []
        tokens: list[int] = []
        for state, start, begin, count in zip(
            states, plan.starts, plan.offsets, plan.counts, strict=True
        ):
            row = state.scored(start, count) if state.prompt else None
            if row is not None:
                rows.append(row)
                tokens.extend(range(begin, begin + len(row.token_ids)))
        return tokens, tuple(rows)

    def _fill(self, plan: StepPlan, states: list[HandleState], input_ids: Int64) -> Int64:
        """Put what was sampled last in place of placeholders; int64 `[tokens]`."""
        if PLACEHOLDER not in plan.token_ids:
            return input_ids
        awaited = np.flatnonzero(input_ids == PLACEHOLDER)
        last = np.zeros(len(awaited), dtype=np.int64)
        # Rank 0 alone samples: it tells the others.
        if not self._communicator.rank:
            rows = np.searchsorted(plan.offsets, awaited).tolist()
            last[:] = [states[row].last_sampled(plan.step, plan.starts[row]) for row in rows]
        input_ids[awaited] = self._communicator.broadcast(self._tensor(last)).cpu().numpy()
        return input_ids

    def _fork(self, plan: StepPlan, fork: Fork) -> HandleState:
        if fork.handle in self._handles:
            raise PlanError(f"step {plan.step} forks into handle {fork.handle}, which is known")
        child = self._known(plan, fork.parent).child(fork)
        self._handles[fork.handle] = child
        return child

    def _tensor(self, values: Int32 | Int64) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        return tensor if self._on_cpu else tensor.to(self._device, non_blocking=True)


def _guessed(plan: StepPlan, sample_handles: Sequence[int]) -> tuple[GuessedRow, ...]:
    columns = zip(plan.handles, plan.starts, plan.offsets, plan.counts, plan.guesses, strict=True)
    return tuple(
        GuessedRow(
            handle,
            sample_handles.index(handle),
            start + count - guessed,
            plan.token_ids[offset + count - guessed : offset + count],
            row,
            offset + count - guessed,
        )
        for row, (handle, start, offset, count, guessed) in enumerate(columns)
        if guessed
    )
