"""Chooses tokens over a vocabulary that is divided among ranks, mostly without gathering logits.

Each rank finds the best token of its own part, and rank 0 the best of these: three numbers a row
and rank. Scores and noise of a token do not depend on the part that it is in, so the tokens are
those of whole rows. A row is gathered whole where its token, or what else is told, depends on all
of it. Which rows those are follows from what all ranks know. Units: token ids, rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from blockyard.cuda.backend import TokenKernels
from blockyard.cuda.sampling import ChosenTokens, best_of_parts
from blockyard.scheduler.plan import PromptLogprobs
from blockyard.scheduler.sampling import TokenLogprobs
from blockyard.workers.batch import FlatBatch
from blockyard.workers.collectives import Communicator
from blockyard.workers.gumbel import gumbel_noise
from blockyard.workers.prompt_scores import score_prompts
from blockyard.workers.sampler import (
    SampledTokens,
    SampleRow,
    row_for_kernel,
    rows_drawn_at_once,
    sample,
)
from blockyard.workers.truncation import truncates

__all__ = [
    "DividedLogits",
    "DividedRows",
    "Sampled",
    "divide_rows",
    "sample_divided",
    "sample_whole",
]

_BROKEN = 1
_NO_TOKEN = 2
"""See `ChosenTokens.failed`."""


@dataclass(frozen=True, slots=True)
class DividedRows:
    """The sample rows of a step, by how they are chosen.

    Attributes:
        apart: rows whose parts are chosen from.
        whole: rows that are gathered.
    """

    apart: tuple[int, ...]
    whole: tuple[int, ...]


def divide_rows(rows: Sequence[SampleRow], vocabulary: int) -> DividedRows:
    """Which rows can be chosen part by part."""
    apart = [
        index
        for index, row in enumerate(rows)
        if row.rules is None
        and row.sampling.num_tops is None
        and (row.sampling.greedy or not truncates(row.sampling, vocabulary))
    ]
    others = set(range(len(rows))) - set(apart)
    return DividedRows(tuple(apart), tuple(sorted(others)))


Sampled = tuple[SampledTokens, tuple[PromptLogprobs, ...]]
"""What was chosen for a step's sample rows, and what its prompts' tokens are worth."""


def sample_whole(
    logits: torch.Tensor,
    batch: FlatBatch,
    rows: Sequence[SampleRow],
    kernels: TokenKernels | None,
) -> Sampled:
    """The slow twin of `sample_divided`, of whole rows.

    Args:
        logits: of `batch`, `[logits, vocabulary]`.
        batch: the step.
        rows: its sample rows.
        kernels: the backend's, if it has any.
    """
    scored = score_prompts(logits, batch.prompt_rows, kernels)
    if batch.sample_logits is not None:
        logits = logits[batch.sample_logits]
    return sample(logits[: len(rows)], rows, kernels), scored


def sample_divided(
    piece: torch.Tensor,
    batch: FlatBatch,
    rows: Sequence[SampleRow],
    vocabulary: int,
    communicator: Communicator,
    kernels: TokenKernels | None,
) -> Sampled | None:
    """What `sample_whole` would answer to whole rows, on rank 0; elsewhere None.

    Args:
        piece: this rank's part of the logits of `batch`.
        batch: the step.
        rows: its sample rows; rank 0's may know more than others'.
        vocabulary: width of whole rows.
        communicator: this rank's end of its group.
        kernels: the backend's, if it has any.
    """
    logits = DividedLogits(piece, vocabulary, communicator)
    split, origins = divide_rows(rows, vocabulary), _origins(batch)
    apart = None
    if split.apart:
        apart = logits.choose(
            [origins[row] for row in split.apart], [rows[row] for row in split.apart], kernels
        )
    num_scored = sum(len(row.token_ids) for row in batch.prompt_rows)
    wanted = [origins[row] for row in split.whole]
    wanted += range(len(piece) - num_scored, len(piece))
    gathered = logits.gather(wanted) if wanted else None
    if communicator.rank:
        return None
    if gathered is None:
        return _merged(split, apart, None), ()
    whole = sample(gathered[: len(split.whole)], [rows[row] for row in split.whole], kernels)
    return _merged(split, apart, whole), score_prompts(gathered, batch.prompt_rows, kernels)


class DividedLogits:
    """One rank's part of a step's logits.

    Args:
        piece: `[logits, own rows]`; columns past the vocabulary are cut off here.
        vocabulary: width of whole rows.
        communicator: this rank's end of its group.
    """

    def __init__(self, piece: torch.Tensor, vocabulary: int, communicator: Communicator) -> None:
        self._piece = piece
        self._vocabulary = vocabulary
        self._communicator = communicator
        self._first = min(communicator.rank * piece.shape[1], vocabulary)
        own = min(self._first + piece.shape[1], vocabulary) - self._first
        self._own = piece[:, :own]

    def gather(self, logits: Sequence[int]) -> torch.Tensor:
        """Some rows whole, on rank 0; elsewhere nothing to count on."""
        piece = _rows_of(self._piece, logits)
        return self._communicator.gather_columns(piece)[:, : self._vocabulary]

    def choose(
        self, logits: Sequence[int], rows: Sequence[SampleRow], kernels: TokenKernels | None
    ) -> SampledTokens | None:
        """A token for each row, on rank 0.

        Args:
            logits: which of the logits each is sampled from.
            rows: of `DividedRows.apart`.
            kernels: the backend's, if it has any.
        """
        best = self._best_of_part(logits, rows, kernels)
        ranks = self._communicator.gather_columns(best)
        if self._communicator.rank:
            return None
        scores, tokens, failed = ranks.view(len(rows), -1, 3).unbind(-1)  # [rows, ranks]
        columns = zip(
            tokens.long().unbind(1), scores.unbind(1), failed.int().unbind(1), strict=True
        )
        best_of_all = best_of_parts([ChosenTokens(*part) for part in columns])
        token_ids, why_none = torch.stack((best_of_all.tokens, best_of_all.failed.long())).tolist()
        return SampledTokens(
            tuple(token_ids),
            tuple(row for row, reason in enumerate(why_none) if reason),
            emptied=tuple(row for row, reason in enumerate(why_none) if reason == _NO_TOKEN),
        )

    def _best_of_part(
        self, logits: Sequence[int], rows: Sequence[SampleRow], kernels: TokenKernels | None
    ) -> torch.Tensor:
        """float64 `[rows, 3]`: the best score, its token, and why there is none."""
        device, width = self._own.device, self._own.shape[1]
        if not width:  # there are more ranks than it takes
            best = torch.zeros(len(rows), 3, dtype=torch.float64, device=device)
            best[:, 2] = _NO_TOKEN
            return best
        scores = self._without_stops(_rows_of(self._own, logits).float(), rows)
        # A kernel makes noise for four tokens at once, so its part begins with the first of four.
        if kernels is not None and self._piece.shape[1] % 4 == 0:
            chosen = kernels.choose(scores, [row_for_kernel(row) for row in rows], self._first)
            columns = (chosen.scores, chosen.tokens, chosen.failed)
            return torch.stack([column.double() for column in columns], dim=1)
        highest, choices = scores.max(dim=-1)  # NaN counts as the highest
        failed = torch.where(torch.isfinite(highest), 0, _BROKEN)
        failed = torch.where(highest == float("-inf"), _NO_TOKEN, failed)
        best = torch.stack((highest.double(), choices.double(), failed.double()), dim=1)
        drawn = [index for index, row in enumerate(rows) if not row.sampling.greedy]
        at_once = rows_drawn_at_once(width)
        for begin in range(0, len(drawn), at_once):
            part = drawn[begin : begin + at_once]
            noisy = self._with_noise(scores[part], [rows[index] for index in part])
            values, ids = noisy.max(dim=-1)
            best[part, 0], best[part, 1] = values, ids.double()
        best[:, 1] += self._first
        return best

    def _with_noise(self, scores: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
        temperature = scores.new_tensor([row.sampling.temperature for row in rows])
        keys = [row.noise_key for row in rows]
        noise = gumbel_noise(keys, scores.shape[1], scores.device, self._first)
        return noise.add_(scores / temperature[:, None])

    def _without_stops(self, scores: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
        """Mask stop tokens of rows that have not produced enough; `scores` is not changed."""
        masked = [
            (index, token - self._first)
            for index, row in enumerate(rows)
            if row.produced < row.sampling.min_tokens
            for token in row.sampling.stop_token_ids
            if 0 <= token - self._first < scores.shape[1]
        ]
        if masked:
            where = torch.tensor(masked, device=scores.device).unbind(1)
            scores = scores.clone()
            scores[where] = float("-inf")
        return scores


def _rows_of(piece: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Some rows; where those are the first ones, without a copy."""
    if list(rows) == list(range(len(rows))):
        return piece[: len(rows)]
    return piece[torch.tensor(rows, dtype=torch.int64, device=piece.device)]


def _origins(batch: FlatBatch) -> list[int]:
    """Which of a batch's logits each sample row is sampled from."""
    if batch.sample_logits is None:
        return list(range(len(batch.sample_rows)))
    found: list[int] = batch.sample_logits.tolist()
    return found


def _merged(
    split: DividedRows, apart: SampledTokens | None, whole: SampledTokens | None
) -> SampledTokens:
    """All rows in order again."""
    parts = [(split.apart, apart), (split.whole, whole)]
    total = len(split.apart) + len(split.whole)
    token_ids = [0] * total
    logprobs: list[TokenLogprobs | None] = [None] * total
    failed: list[int] = []
    emptied: list[int] = []
    for rows, found in parts:
        if found is None:
            continue
        for row, token in zip(rows, found.token_ids, strict=True):
            token_ids[row] = token
        for row, told in zip(rows, found.logprobs, strict=False):
            logprobs[row] = told
        failed += [rows[index] for index in found.failed]
        emptied += [rows[index] for index in found.emptied]
    some = whole is not None and whole.logprobs
    return SampledTokens(
        tuple(token_ids),
        tuple(sorted(failed)),
        tuple(logprobs) if some else (),
        tuple(sorted(emptied)),
    )
