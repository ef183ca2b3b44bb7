"""A worker without a model, whose answers prove that blocks were kept right.

It writes (position, token) of every planned token into the slot that the block table names, and
its next token is a hash of everything it then reads back through that table: one wrong, missing
or overwritten block changes the output. It also refuses every plan that breaks the protocol. It
ignores how tokens are to be sampled, and needs no model files. Units: tokens, blocks, slots.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.workers.config import WorkerConfig, WorkerProfile

__all__ = ["PlanRefused", "WitnessWorker", "witness_generate", "witness_next_token"]

_DEFAULT_NUM_BLOCKS = 1024
_BYTES_PER_SLOT = 8
_POISON = -1
"""What no write ever leaves in a slot: position and token are never negative."""

_TOKEN_BITS = 32
_WORD = 2**64 - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)


class PlanRefused(RuntimeError):
    """A plan breaks the protocol between scheduler and worker; the rank cannot go on."""


@dataclass(slots=True)
class _Row:
    """What a worker remembers of one handle."""

    block_ids: list[int] = field(default_factory=list)
    written: int = 0


class WitnessWorker:
    """One rank of a group, for running the real scheduler and everything above it in tests."""

    def __init__(self, config: WorkerConfig, vocab_size: int) -> None:
        if not 0 < vocab_size < 2**31:
            raise ValueError(f"vocab_size is {vocab_size}; it must be from 1 to 2^31 - 1")
        self._config = config
        self._vocab_size = vocab_size
        self._num_blocks = 0
        self._slots: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._rows: dict[int, _Row] = {}
        self._newest_handle = -1
        self._step = 0

    def load(self) -> WorkerProfile:
        """There is nothing to load; the room for blocks is as configured, or 1,024."""
        block_bytes = self._config.block_size * _BYTES_PER_SLOT
        return WorkerProfile(
            max_blocks=self._config.num_blocks or _DEFAULT_NUM_BLOCKS,
            block_bytes=block_bytes,
            weight_bytes=0,
            activation_bytes=0,
            device="cpu",
            dtype="int64",
        )

    def allocate(self, num_blocks: int) -> None:
        """Make the pool: int64 [num_blocks * block_size], every slot poisoned."""
        if self._num_blocks:
            raise PlanRefused("the pool was made already")
        self._num_blocks = num_blocks
        self._slots = np.full(num_blocks * self._config.block_size, _POISON, dtype=np.int64)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step: every row writes, then every sampled row reads.

        Raises:
            PlanRefused: the plan breaks the protocol; the message names handle or block.
        """
        began = time.perf_counter()
        self._accept(plan)
        slots_by_row = []
        offset = 0
        for handle, start, count in zip(plan.handles, plan.starts, plan.counts, strict=True):
            tokens = plan.token_ids[offset : offset + count]
            offset += count
            slots_by_row.append(self._write(plan.step, handle, start, tokens))
        token_ids = tuple(
            _next_token(self._slots[slots], self._vocab_size)
            for slots, samples in zip(slots_by_row, plan.samples, strict=True)
            if samples
        )
        return StepResult(plan.step, token_ids, compute_seconds=time.perf_counter() - began)

    def _accept(self, plan: StepPlan) -> None:
        """Forget, admit and grant, refusing what does not follow from the plans before."""
        plan.check()
        if plan.step != self._step + 1:
            raise PlanRefused(f"step {plan.step} came after step {self._step}")
        self._step = plan.step
        for handle in plan.forgotten:
            if self._rows.pop(handle, None) is None:
                raise PlanRefused(f"step {plan.step} forgets handle {handle}, which is unknown")
        for admission in plan.admitted:
            if admission.handle <= self._newest_handle:
                raise PlanRefused(f"step {plan.step} admits handle {admission.handle} again")
            self._newest_handle = admission.handle
            self._rows[admission.handle] = _Row()
        for grant in plan.grants:
            row = self._row(plan.step, grant.handle)
            for block_id in grant.block_ids:
                if not 0 <= block_id < self._num_blocks:
                    raise PlanRefused(
                        f"step {plan.step} grants block {block_id}, the pool has {self._num_blocks}"
                    )
                if block_id in row.block_ids:
                    raise PlanRefused(
                        f"step {plan.step} grants block {block_id} to handle {grant.handle} twice"
                    )
                row.block_ids.append(block_id)

    def _write(
        self, step: int, handle: int, start: int, token_ids: Sequence[int]
    ) -> npt.NDArray[np.int64]:
        """Write one row's tokens; return the slots of positions 0 to its last, int64 [length]."""
        row = self._row(step, handle)
        block_size = self._config.block_size
        end = start + len(token_ids)
        if start != row.written:
            raise PlanRefused(
                f"step {step} starts handle {handle} at {start}, it has {row.written} tokens"
            )
        if end > len(row.block_ids) * block_size:
            raise PlanRefused(
                f"step {step} takes handle {handle} to {end} tokens, "
                f"its blocks hold {len(row.block_ids) * block_size}"
            )
        if not all(0 <= token < self._vocab_size for token in token_ids):
            raise PlanRefused(
                f"step {step} gives handle {handle} a token outside 0 to {self._vocab_size - 1}"
            )
        positions = np.arange(end, dtype=np.int64)
        blocks = np.array(row.block_ids, dtype=np.int64)
        slots = blocks[positions // block_size] * block_size + positions % block_size
        self._slots[slots[start:]] = _entries(start, token_ids)
        row.written = end
        return slots

    def _row(self, step: int, handle: int) -> _Row:
        row = self._rows.get(handle)
        if row is None:
            raise PlanRefused(f"step {step} names handle {handle}, which is unknown")
        return row


def witness_next_token(token_ids: Sequence[int], vocab_size: int) -> int:
    """The token after `token_ids`, as a worker that keeps its blocks right must answer."""
    return _next_token(_entries(0, token_ids), vocab_size)


def witness_generate(
    prompt: Sequence[int],
    max_tokens: int,
    vocab_size: int,
    stop_ids: Collection[int] = (),
    min_tokens: int = 0,
) -> list[int]:
    """What a request must produce: the oracle, which never saw a block.

    Ends with a stop token once `min_tokens` were produced, or after `max_tokens`.
    """
    tokens = list(prompt)
    for produced in range(1, max_tokens + 1):
        tokens.append(witness_next_token(tokens, vocab_size))
        if tokens[-1] in stop_ids and produced >= min_tokens:
            break
    return tokens[len(prompt) :]


def _entries(start: int, token_ids: Sequence[int]) -> npt.NDArray[np.int64]:
    """What slots hold for tokens at positions from `start`: position, then token; int64."""
    positions = np.arange(start, start + len(token_ids), dtype=np.int64)
    return (positions << _TOKEN_BITS) | np.array(token_ids, dtype=np.int64)


def _next_token(entries: npt.NDArray[np.int64], vocab_size: int) -> int:
    """Mix all entries, each with its place in the row (splitmix64), into one token."""
    places = np.arange(1, len(entries) + 1, dtype=np.uint64)
    word = entries.astype(np.uint64) + places * _GOLDEN
    word = (word ^ (word >> np.uint64(30))) * _FIRST_FACTOR
    word = (word ^ (word >> np.uint64(27))) * _SECOND_FACTOR
    word ^= word >> np.uint64(31)
    digest = int(word.sum(dtype=np.uint64))
    # The sum of the mixed entries is itself even enough; the high half avoids low-bit patterns.
    return ((digest & _WORD) >> 32) % vocab_size
