"""A worker without a model, whose answers prove that blocks were kept right.

It writes (position, token) of every planned token into the slot that the block table names, and
its next token is a hash of everything it then reads back through that table: one wrong, missing
or overwritten block changes the output, and so does one that was moved wrongly. It also refuses
every plan that breaks the protocol (see `workers/witness_tables.py`). An adapter marks what is
written with it, and so what is read from there. Of how tokens are to be
sampled it heeds only `choice`; asked how likely a token is, it is certain, except for searches: to
those it tells tokens and log probabilities that are hashes too. It needs no model files.
Units: tokens, blocks, slots.
"""

import time
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from blockyard.scheduler.plan import (
    GUESS,
    BlockCopy,
    PromptLogprobs,
    StepPlan,
    StepResult,
    num_right,
)
from blockyard.scheduler.sampling import TokenLogprobs
from blockyard.workers.adapter_description import AdapterDescription
from blockyard.workers.config import WorkerConfig, WorkerProfile
from blockyard.workers.host_memory import HostMemory
from blockyard.workers.witness_answers import likeliest, next_token
from blockyard.workers.witness_slots import TOKEN_BITS, slot_entries
from blockyard.workers.witness_tables import PlanRefused, WitnessRow, WitnessTables

__all__ = [
    "PlanRefused",
    "WitnessWorker",
    "witness_generate",
    "witness_likeliest",
    "witness_next_token",
]

_DEFAULT_NUM_BLOCKS = 1024
_BYTES_PER_SLOT = 8
_POISON = -1
"""What no write ever leaves in a slot: position and token are never negative."""

_GUESSES_TO_A_MISTAKE = 5

_TOKEN_MASK = 2**TOKEN_BITS - 1


class WitnessWorker:
    """One rank of a group, for running the real scheduler and everything above it in tests."""

    def __init__(self, config: WorkerConfig, vocab_size: int) -> None:
        if not 0 < vocab_size < 2**31:
            raise ValueError(f"vocab_size is {vocab_size}; it must be from 1 to 2^31 - 1")
        self._config = config
        self._vocab_size = vocab_size
        self._slots: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._blocks = self._host_blocks = np.empty((0, config.block_size), dtype=np.int64)
        self._tables: WitnessTables | None = None
        self._adapters: set[str] = set()

    def load(self) -> WorkerProfile:
        """There is nothing to load; the room for blocks is as configured, or 1,024 and none."""
        block_bytes = self._config.block_size * _BYTES_PER_SLOT
        return WorkerProfile(
            max_blocks=self._config.num_blocks or _DEFAULT_NUM_BLOCKS,
            block_bytes=block_bytes,
            weight_bytes=0,
            activation_bytes=0,
            device="cpu",
            dtype="int64",
            max_host_blocks=self._config.num_host_blocks or 0,
        )

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Make both pools: int64 [blocks, block_size], every slot poisoned."""
        block_size = self._config.block_size
        self._slots = np.full(num_blocks * block_size, _POISON, dtype=np.int64)
        self._blocks = self._slots.reshape(num_blocks, block_size)
        self._host_blocks = np.full((num_host_blocks, block_size), _POISON, dtype=np.int64)
        self._tables = WitnessTables(num_blocks, num_host_blocks, block_size)

    def host_memory(self) -> HostMemory | None:
        """See `SharesHostMemory`."""
        if not self._host_blocks.size:
            return None
        block_bytes = self._config.block_size * _BYTES_PER_SLOT
        return HostMemory("witness", block_bytes, self._host_blocks.data.cast("B"))

    def load_adapter(self, adapter: AdapterDescription) -> None:
        """Know an adapter, of which the files are not looked at."""
        self._adapters.add(adapter.adapter_id)

    def drop_adapter(self, adapter_id: str) -> None:
        """Forget an adapter."""
        self._adapters.discard(adapter_id)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step: blocks move, every row writes, then every sampled row and fork reads.

        Raises:
            PlanRefused: the plan breaks the protocol; the message names handle or block.
        """
        began = time.perf_counter()
        if self._tables is None:
            raise PlanRefused("a plan came before the pool was made; call allocate first")
        self._tables.accept(plan)
        self._move_blocks(plan)
        moved = time.perf_counter()
        slots_by_handle = {}
        made: list[int] = []
        offset = 0
        guesses = dict(zip(plan.handles, plan.guesses, strict=False))
        for handle, start, count in zip(plan.handles, plan.starts, plan.counts, strict=True):
            tokens = self._tables.fill(handle, start, plan.token_ids[offset : offset + count])
            offset += count
            if GUESS in tokens:
                tokens = self._guess(self._tables.row(handle), start, tokens)
                made += tokens[-guesses[handle] :]
            slots_by_handle[handle] = self._write(self._tables, plan.step, handle, start, tokens)
        samples = [
            (slots_by_handle[handle], self._tables.row(handle), guesses.get(handle, 0))
            for handle, samples in zip(plan.handles, plan.samples, strict=True)
            if samples
        ]
        samples += [(slots_by_handle[f.parent], self._tables.fork(f), 0) for f in plan.forks]
        token_ids = tuple(
            t for slots, row, guessed in samples for t in self._sample(slots, row, guessed)
        )
        tops = [
            self._likeliest(slots, row)
            for slots, row, guessed in samples
            for _ in range(guessed + 1)
        ]
        return StepResult(
            plan.step,
            token_ids,
            compute_seconds=time.perf_counter() - moved,
            copy_seconds=moved - began,
            logprobs=_logprobs(tops, token_ids),
            prompt_logprobs=self._score(self._tables, plan),
            guesses=tuple(made),
            moved_blocks=len(plan.swap_outs) + len(plan.swap_ins),
        )

    def _likeliest(
        self, slots: npt.NDArray[np.int64], row: WitnessRow
    ) -> int | TokenLogprobs | None:
        """How many likeliest tokens a row wants, or for a search these."""
        if row.searches and row.num_tops:
            return likeliest(self._slots[slots], self._vocab_size, row.num_tops)
        return row.num_tops

    def _score(self, tables: WitnessTables, plan: StepPlan) -> tuple[PromptLogprobs, ...]:
        scored = []
        for handle, start, count in zip(plan.handles, plan.starts, plan.counts, strict=True):
            targets = tables.row(handle).prompt[start + 1 : start + count + 1]
            if targets:
                entries = tuple(_certain(token, 1) for token in targets)
                scored.append(PromptLogprobs(handle, start + 1, entries))
        return tuple(scored)

    def _move_blocks(self, plan: StepPlan) -> None:
        """Carry out the plan's moves. A host block is poisoned once it was brought back.

        A device block that was saved keeps its content, as on a real device: others may share it,
        and the prefix index may still have it.
        """
        sources, destinations = _columns(plan.swap_outs)
        self._host_blocks[destinations] = self._blocks[sources]
        sources, destinations = _columns(plan.copies)
        self._blocks[destinations] = self._blocks[sources]
        sources, destinations = _columns(plan.swap_ins)
        self._blocks[destinations] = self._host_blocks[sources]
        self._host_blocks[sources] = _POISON

    def _write(
        self,
        tables: WitnessTables,
        step: int,
        handle: int,
        start: int,
        token_ids: Sequence[int],
    ) -> npt.NDArray[np.int64]:
        """Write one row's tokens; return the slots of positions 0 to its last, int64 [length]."""
        if not all(0 <= token < self._vocab_size for token in token_ids):
            raise PlanRefused(
                f"step {step} gives handle {handle} a token outside 0 to {self._vocab_size - 1}"
            )
        adapter = tables.row(handle).adapter
        if adapter and adapter not in self._adapters:
            raise PlanRefused(f"step {step} computes handle {handle} with {adapter}, not loaded")
        slots = self._places(tables.advance(handle, start, len(token_ids)), start + len(token_ids))
        self._slots[slots[start:]] = slot_entries(start, token_ids, adapter)
        return slots

    def _places(self, block_ids: Sequence[int], length: int) -> npt.NDArray[np.int64]:
        """Slots of positions 0 to `length` in a table, int64 [length]."""
        blocks, block_size = np.array(block_ids, dtype=np.int64), self._config.block_size
        positions = np.arange(length, dtype=np.int64)
        return blocks[positions // block_size] * block_size + positions % block_size

    def _guess(self, row: WitnessRow, start: int, token_ids: Sequence[int]) -> list[int]:
        """A row's tokens with guesses made, as it will answer itself but now and then wrongly."""
        tokens = [token for token in token_ids if token != GUESS]
        earlier = self._slots[self._places(row.block_ids, start)]
        while len(tokens) < len(token_ids):
            entries = np.concatenate((earlier, slot_entries(start, tokens, row.adapter)))
            token = next_token(entries, self._vocab_size, row.choice)
            mistaken = (token + len(entries)) % _GUESSES_TO_A_MISTAKE == 0
            tokens.append((token + mistaken) % self._vocab_size)
        return tokens

    def _sample(
        self, slots: npt.NDArray[np.int64], row: WitnessRow, guessed: int
    ) -> tuple[int, ...]:
        """What follows a row's tokens from before its guesses on; it goes on behind right ones.

        The last of them that counts is kept for a plan that does not know it.
        """
        entries, length = self._slots[slots], len(slots) - guessed
        found = tuple(
            next_token(entries[: length + place], self._vocab_size, row.choice)
            for place in range(guessed + 1)
        )
        right = num_right([int(entry) & _TOKEN_MASK for entry in entries[length:]], found)
        row.written = length + right
        row.sampled, row.sampled_at = found[right], row.written
        return found


def witness_next_token(
    token_ids: Sequence[int], vocab_size: int, choice: int = 0, adapter: str = ""
) -> int:
    """The token after `token_ids`, as a worker that keeps its blocks right must answer.

    Choices of one prompt differ in their first token, up to `vocab_size` of them.
    """
    return next_token(slot_entries(0, token_ids, adapter), vocab_size, choice)


def witness_likeliest(token_ids: Sequence[int], vocab_size: int, most: int) -> TokenLogprobs:
    """What may follow `token_ids`, as a worker that keeps its blocks right tells a search."""
    return likeliest(slot_entries(0, token_ids), vocab_size, most)


def witness_generate(
    prompt: Sequence[int],
    max_tokens: int,
    vocab_size: int,
    stop_ids: Collection[int] = (),
    min_tokens: int = 0,
    choice: int = 0,
    adapter: str = "",
) -> list[int]:
    """What a request must produce: the oracle, which never saw a block.

    Ends with a stop token once `min_tokens` were produced, or after `max_tokens`.
    """
    tokens = list(prompt)
    for produced in range(1, max_tokens + 1):
        tokens.append(witness_next_token(tokens, vocab_size, choice, adapter))
        if tokens[-1] in stop_ids and produced >= min_tokens:
            break
    return tokens[len(prompt) :]


def _logprobs(
    wanted: Sequence[int | TokenLogprobs | None], token_ids: Sequence[int]
) -> tuple[TokenLogprobs | None, ...]:
    if all(top is None for top in wanted):
        return ()
    return tuple(
        _certain(token, top) if isinstance(top, int) else top
        for top, token in zip(wanted, token_ids, strict=True)
    )


def _certain(token: int, top: int) -> TokenLogprobs:
    """The only token that could be."""
    return TokenLogprobs(0.0, 1, (token,), (0.0,)) if top else TokenLogprobs(0.0, 1)


def _columns(moves: Sequence[BlockCopy]) -> tuple[list[int], list[int]]:
    """Sources and destinations of block moves."""
    return [move.source for move in moves], [move.destination for move in moves]
