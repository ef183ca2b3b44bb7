"""A smaller model that guesses what the served one will choose, so that a step checks several.

It computes the tokens that the served model computes, and its keys and values lie in the same
blocks. Whoever finds, shares, copies or restores a block has both:

    tokens of a row | known             | guesses but the last | the last guess
    its KV is       | written at first, | written by a pass    | written once all
    written         | for all rows      | for each             | are right, else never

What stands at wrong guesses is written over when the tokens that came in their place are computed.
A guess is chosen as the token at its place will be, by the same rules and noise, so that a model
that thinks alike guesses right where tokens are drawn at random too. Units: tokens, slots.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from blockyard.cuda.backend import AttentionBackend, AttentionBatch
from blockyard.scheduler.plan import num_right
from blockyard.workers.attention import CachedAttention
from blockyard.workers.batch import FlatBatch
from blockyard.workers.collectives import Communicator
from blockyard.workers.config import WorkerConfig
from blockyard.workers.grammar import prepare_masks
from blockyard.workers.guesses import GuessedRow
from blockyard.workers.kv_layers import KVGeometry, KVLayers
from blockyard.workers.kv_scales import settle_head_scales
from blockyard.workers.logit_rules import LogitRules
from blockyard.workers.model import DecoderModel
from blockyard.workers.sampler import SampleRow, grammars_ahead, sample

__all__ = ["DraftModel"]

Fed = tuple[GuessedRow, int, int]
"""A guess that is computed: its row, its place among the row's guesses, its token."""


class DraftModel:
    """One rank's part of a draft model; all ranks call the same methods in the same order.

    Attributes:
        model: divided over ranks as the served one is; logits are rank 0's.
        geometry: of its part of a block.

    Args:
        config: of the rank, as if this were the served model.
        model, geometry: see above.
        backend: of its attention.
        communicator: tells what rank 0 has chosen to the others.
        vocab_size: width of the served model's logits.
    """

    def __init__(
        self,
        config: WorkerConfig,
        model: DecoderModel,
        geometry: KVGeometry,
        backend: AttentionBackend,
        communicator: Communicator,
        vocab_size: int,
    ) -> None:
        self.model = model
        self.geometry = geometry
        self._config = config
        self._backend = backend
        self._communicator = communicator
        self._vocab_size = vocab_size

    def settle(self, layers: KVLayers) -> None:
        """Give float8 blocks their scales, before the first step.

        Raises:
            ModelFilesError: see `settle_head_scales`.
        """
        settle_head_scales(layers, self.model, self._config)

    def guess(self, layers: KVLayers, batch: FlatBatch) -> FlatBatch:
        """Compute a step's known tokens and make its guesses; the batch with them in place.

        Args:
            layers: its keys and values in the blocks.
            batch: whose rules know what is known.
        """
        rows = batch.guessed
        logits = self._compute_known(layers, batch)
        guesses: list[list[int]] = [[] for _ in rows]
        rules: list[LogitRules | None] = [batch.sample_rows[row.first].rules for row in rows]
        going = list(range(len(rows)))
        while going:
            place = len(guesses[going[0]])
            sampled = [
                _without_logprobs(
                    replace(batch.sample_rows[rows[index].first + place], rules=rules[index])
                )
                for index in going
            ]
            for index, token in zip(going, self._choose(logits, sampled), strict=True):
                guesses[index].append(token)
            going = [index for index in going if len(rows[index].token_ids) > place + 1]
            if not going:
                break
            fed = [(rows[index], place, guesses[index][place]) for index in going]
            for index, (row, _, token) in zip(going, fed, strict=True):
                rules[index] = _go_on(rules[index], row.position + place, token, own=place > 0)
            logits = self._compute(layers, batch, fed)
        return _with_guesses(batch, guesses) if rows else batch

    def confirm(self, layers: KVLayers, batch: FlatBatch, token_ids: Sequence[int]) -> None:
        """Compute the last guess of rows whose guesses were all right: their KV stays.

        Args:
            layers: see `guess`.
            batch: what that has answered.
            token_ids: what was sampled; rank 0's alone are looked at.
        """
        rows = batch.guessed
        if not rows:
            return
        right = torch.zeros(len(rows), dtype=torch.int64)
        if not self._communicator.rank:
            right = torch.tensor(
                [
                    num_right(row.token_ids, token_ids[row.first : row.end]) == len(row.token_ids)
                    for row in rows
                ],
                dtype=torch.int64,
            )
        told = self._tell(right)
        fed = [
            (row, len(row.token_ids) - 1, row.token_ids[-1])
            for row, kept in zip(rows, told, strict=True)
            if kept
        ]
        if fed:
            self._compute(layers, batch, fed)

    def _compute_known(self, layers: KVLayers, batch: FlatBatch) -> torch.Tensor:
        """Compute all of a step but its guesses; logits of what each row's first one follows."""
        attention, ids, positions = batch.attention, batch.input_ids, batch.positions
        if not batch.guessed:
            # Nobody looks at these, but models are known to compute some.
            wanted = torch.zeros(1, dtype=torch.int64, device=ids.device)
            return self._forward(layers, ids, positions, wanted, attention)
        guessed = np.zeros(len(attention.counts), dtype=np.int32)
        is_known = np.ones(len(ids), dtype=bool)
        for row in batch.guessed:
            guessed[row.row] = len(row.token_ids)
            is_known[row.place : row.place + len(row.token_ids)] = False
        known = np.flatnonzero(is_known)
        befores = np.searchsorted(known, [row.place - 1 for row in batch.guessed])
        index, wanted = self._tensor(known), self._tensor(befores)
        attention = replace(
            attention,
            counts=attention.counts - guessed,
            lengths=attention.lengths - guessed,
            slots=attention.slots[index],
        )
        return self._forward(layers, ids[index], positions[index], wanted, attention)

    def _compute(self, layers: KVLayers, batch: FlatBatch, fed: Sequence[Fed]) -> torch.Tensor:
        """Compute a guess of each of some rows; logits of what follows them."""
        whole = batch.attention
        assert whole.host_tables is not None, "batches of plans have them"
        rows = np.array([row.row for row, _, _ in fed], dtype=np.int64)
        positions = np.array([row.position + place for row, place, _ in fed], dtype=np.int64)
        ids = np.array([token for _, _, token in fed], dtype=np.int64)
        tables, size = whole.host_tables[rows], whole.block_size
        blocks = tables[np.arange(len(rows)), positions // size].astype(np.int64)
        attention = AttentionBatch(
            counts=np.ones(len(rows), dtype=np.int32),
            lengths=(positions + 1).astype(np.int32),
            block_tables=whole.block_tables[self._tensor(rows)],
            slots=self._tensor(blocks * size + positions % size),
            block_size=size,
            host_tables=tables,
        )
        every = self._tensor(np.arange(len(rows)))
        return self._forward(layers, self._tensor(ids), self._tensor(positions), every, attention)

    def _forward(
        self,
        layers: KVLayers,
        ids: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        attention: AttentionBatch,
    ) -> torch.Tensor:
        step = CachedAttention(layers, self._backend.begin(attention))
        if self.model.vocab_size < self._vocab_size:
            ids = ids.clamp_max(self.model.vocab_size - 1)
        logits = self.model.forward(ids, positions, wanted, step)
        if self._communicator.rank or logits.shape[1] == self._vocab_size:
            return logits
        # Tokenizers are the same; what fills up the one or the other is no token.
        missing = max(0, self._vocab_size - logits.shape[1])
        logits = logits[:, : self._vocab_size]
        return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))

    def _choose(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int]:
        """A token for each row, on every rank; any where none can be chosen."""
        chosen = torch.zeros(len(rows), dtype=torch.int64)
        if not self._communicator.rank:
            prepare_masks(grammars_ahead(rows, self._vocab_size, self.model.device))
            sampled = sample(logits, rows, self._backend.sampler)
            chosen = torch.tensor(sampled.token_ids)
            chosen[list(sampled.failed)] = 0
        return self._tell(chosen)

    def _tell(self, numbers: torch.Tensor) -> list[int]:
        """Rank 0's numbers, on every rank."""
        if self._communicator.size > 1:
            numbers = self._communicator.broadcast(numbers.to(self.model.device))
        told: list[int] = numbers.tolist()
        return told

    def _tensor(self, values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> torch.Tensor:
        return torch.from_numpy(values).to(self.model.device, non_blocking=True)


def _without_logprobs(row: SampleRow) -> SampleRow:
    """How a row's token is chosen, without what is told of it."""
    if row.sampling.logprobs is None:
        return row
    return replace(row, sampling=replace(row.sampling, logprobs=None))


def _go_on(rules: LogitRules | None, position: int, token: int, own: bool) -> LogitRules | None:
    """Rules that know a guess; what the request itself goes by is left alone unless `own`."""
    if rules is None:
        return None
    ahead = rules if own else rules.child(rules.sampling)
    ahead.record(position, (token,))
    return ahead


def _with_guesses(batch: FlatBatch, guesses: Sequence[Sequence[int]]) -> FlatBatch:
    """The batch with guesses where they belong."""
    rows = tuple(
        replace(row, token_ids=tuple(made))
        for row, made in zip(batch.guessed, guesses, strict=True)
    )
    device = batch.input_ids.device
    places = [row.place + index for row in rows for index in range(len(row.token_ids))]
    tokens = [token for row in rows for token in row.token_ids]
    input_ids = batch.input_ids.clone()
    input_ids[torch.tensor(places, device=device)] = torch.tensor(tokens, device=device)
    return replace(batch, input_ids=input_ids, guessed=rows)
