"""Chooses the next token of each row: a pure function of logits, parameters, seed and position.

Order of operations: what a request's own rules change (`logit_rules.py`), stop tokens masked while
fewer than `min_tokens` were produced, penalties; then, for greedy rows, the most likely token (the
lowest id of equals is not promised); for others division by temperature, truncation
(`truncation.py`), and Gumbel-max. The noise of a token depends on (seed, choice, position, token
id) alone, so a row's token does not depend on its batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from blockyard.cuda.backend import TokenKernels
from blockyard.cuda.sampling import RowSampling
from blockyard.scheduler.sampling import SamplingParams, TokenLogprobs
from blockyard.workers.grammar import GrammarState, apply_masks
from blockyard.workers.gumbel import NoiseKey, gumbel_noise, gumbel_noise_at
from blockyard.workers.logit_rules import LogitRules, penalise
from blockyard.workers.logprobs import token_logprobs
from blockyard.workers.truncation import candidates_of, truncates

__all__ = [
    "SampleRow",
    "SampledTokens",
    "grammars_ahead",
    "row_for_kernel",
    "rows_drawn_at_once",
    "sample",
]

_DRAWN_ELEMENTS = 1 << 20
_BROKEN = 1
_EMPTY = 2
"""Columns of what is chosen, after the tokens."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """How one row of logits is sampled.

    Attributes:
        sampling: the request's parameters.
        position: position of the new token within its request, prompt included.
        produced: tokens produced before this one.
        rules: what the request changes in its scores, with all its tokens so far; None when that
            is nothing, see `rules_for`.
    """

    sampling: SamplingParams
    position: int
    produced: int
    rules: LogitRules | None = None

    @property
    def noise_key(self) -> NoiseKey:
        """What the noise of this row depends on."""
        return self.sampling.seed, self.sampling.choice, self.position


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One token for each row; `failed` are the rows whose token means nothing.

    `emptied` are those of them that their own parameters have left without a token. `logprobs` has
    one entry for each row, or none at all when no row wants any.
    """

    token_ids: tuple[int, ...]
    failed: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    emptied: tuple[int, ...] = ()


def rows_drawn_at_once(vocabulary: int) -> int:
    """Rows that are drawn together, which bounds the memory that drawing takes."""
    return max(1, _DRAWN_ELEMENTS // vocabulary)


def sample(
    logits: torch.Tensor, rows: Sequence[SampleRow], kernels: TokenKernels | None = None
) -> SampledTokens:
    """Choose a token for each row.

    Args:
        logits: `[rows, vocabulary]`, any floating type, not changed.
        rows: parameters of each row.
        kernels: the backend's, on a GPU or a CPU, if it has any; typical-p, which they lack, is
            left to torch.

    Returns:
        The tokens. A row fails when a logit is NaN or +inf, or none is left to choose from.
    """
    if not rows:
        return SampledTokens((), ())
    scores = _ruled(logits.float(), rows, kernels)
    answer = _choose(scores, rows, kernels)
    refused = [
        index
        for index, row in enumerate(rows)
        if (grammar := _tried_first(row, scores.shape[1], scores.device)) is not None
        and not answer[_BROKEN][index]
        and not grammar.allows(answer[0][index])
    ]
    if refused:
        left = scores[torch.tensor(refused, device=scores.device)]
        some = [rows[index] for index in refused]
        states = {at: row.rules.grammar for at, row in enumerate(some) if row.rules is not None}
        apply_masks(left, {at: state for at, state in states.items() if state is not None})
        for column, values in zip(answer, _choose(left, some, kernels), strict=True):
            for index, value in zip(refused, values, strict=True):
                column[index] = value
    token_ids = tuple(answer[0])
    failed = tuple(row for row, means_nothing in enumerate(answer[_BROKEN]) if means_nothing)
    emptied = tuple(row for row, nothing in enumerate(answer[_EMPTY]) if nothing)
    logprobs = _logprobs(logits, rows, token_ids, kernels)
    return SampledTokens(token_ids, failed, logprobs, emptied)


def grammars_ahead(
    rows: Sequence[SampleRow], vocabulary: int, device: torch.device
) -> list[GrammarState]:
    """Grammars whose masks `sample` will need, whatever the scores are."""
    return [
        row.rules.grammar
        for row in rows
        if row.rules is not None
        and row.rules.grammar is not None
        and _tried_first(row, vocabulary, device) is None
    ]


def _tried_first(row: SampleRow, vocabulary: int, device: torch.device) -> GrammarState | None:
    """The grammar of a row whose token is chosen without it and then shown to it.

    Where the best score wins among all tokens, it also wins among fewer. On a CPU, which has the
    model to run, a mask takes longer than to ask after one token, and mostly that one may come.
    """
    if device.type != "cpu" or row.rules is None:
        return None
    whole = row.sampling.greedy or not truncates(row.sampling, vocabulary)
    return row.rules.grammar if whole else None


def _choose(
    scores: torch.Tensor, rows: Sequence[SampleRow], kernels: TokenKernels | None
) -> list[list[int]]:
    """For each row its token, whether that means nothing, and whether none was left."""
    if kernels is None and scores.is_cpu and all(row.sampling.greedy for row in rows):
        return _most_likely(scores.numpy())
    if kernels is None:
        highest, choices = scores.max(dim=-1)  # NaN counts as the highest
        broken = ~torch.isfinite(highest)
        empty = highest == float("-inf")
        drawn = [index for index, row in enumerate(rows) if not row.sampling.greedy]
    else:
        chosen = kernels.choose(scores, [row_for_kernel(row) for row in rows])
        choices = chosen.tokens.long()
        broken, empty = chosen.failed > 0, chosen.failed == 2
        drawn = [index for index, row in enumerate(rows) if _left_to_torch(row.sampling)]
    at_once = rows_drawn_at_once(scores.shape[1])
    for begin in range(0, len(drawn), at_once):
        part = drawn[begin : begin + at_once]
        index = torch.tensor(part, device=scores.device)
        choices = choices.index_copy(0, index, _draw(scores[index], [rows[i] for i in part]))
    columns = torch.stack((choices, broken.long(), empty.long()))
    answer: list[list[int]] = columns.tolist()  # one transfer
    return answer


def _most_likely(scores: npt.NDArray[np.float32]) -> list[list[int]]:
    """What `_choose` answers for greedy rows; numpy looks through a row many times as fast."""
    choices = [int(row.argmax()) for row in scores]  # NaN counts as the highest
    highest = [float(row[choice]) for row, choice in zip(scores, choices, strict=True)]
    return [
        choices,
        [not math.isfinite(score) for score in highest],
        [score == -math.inf for score in highest],
    ]


def _left_to_torch(sampling: SamplingParams) -> bool:
    return sampling.typical_p < 1.0 and not sampling.greedy


def row_for_kernel(row: SampleRow) -> RowSampling:
    """How a kernel chooses the row's token, unless that is left to torch."""
    sampling = row.sampling
    if sampling.greedy or _left_to_torch(sampling):
        return RowSampling()
    return RowSampling(
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.seed,
        sampling.choice,
        row.position,
    )


def _ruled(
    scores: torch.Tensor, rows: Sequence[SampleRow], kernels: TokenKernels | None
) -> torch.Tensor:
    """Scores after rules, the mask of stop tokens, and penalties; `scores` is not changed.

    Without grammars that are shown the token chosen.
    """
    row_ids: list[int] = []
    token_ids: list[int] = []
    for index, row in enumerate(rows):
        if row.produced < row.sampling.min_tokens:
            stops = row.sampling.stop_token_ids
            row_ids.extend([index] * len(stops))
            token_ids.extend(stops)
    width, device = scores.shape[1], scores.device
    ruled = [
        (index, row.rules)
        for index, row in enumerate(rows)
        if row.rules is not None
        and (row.rules.changes_scores or _tried_first(row, width, device) is None)
    ]
    if not row_ids and not ruled:
        return scores
    scores = scores.clone()
    for index, rules in ruled:
        rules.apply(scores[index])
    grammars = {
        index: rules.grammar
        for index, rules in ruled
        if rules.grammar is not None and _tried_first(rows[index], width, device) is None
    }
    if grammars:
        apply_masks(scores, grammars)
    if row_ids:
        where = torch.tensor(row_ids, device=device), torch.tensor(token_ids, device=device)
        scores[where] = float("-inf")
    penalised = [(index, rules) for index, rules in ruled if rules.sampling.penalised]
    if penalised and kernels is not None:
        kernels.penalise(scores, [rules.penalties(index) for index, rules in penalised])
    elif penalised:
        at = torch.tensor([index for index, _ in penalised], device=scores.device)
        scores[at] = penalise(scores[at], [rules for _, rules in penalised])
    return scores


def _draw(scores: torch.Tensor, rows: list[SampleRow]) -> torch.Tensor:
    """Gumbel-max over what each row may be drawn from; returns `[rows]` token ids."""
    device, vocabulary = scores.device, scores.shape[1]
    temperature = scores.new_tensor([row.sampling.temperature for row in rows])
    scores = scores / temperature[:, None]
    choices = torch.zeros(len(rows), dtype=torch.int64, device=device)
    narrowed = [i for i, row in enumerate(rows) if truncates(row.sampling, vocabulary)]
    free = [i for i, row in enumerate(rows) if not truncates(row.sampling, vocabulary)]
    if free:
        at = torch.tensor(free, device=device)
        noise = gumbel_noise([rows[i].noise_key for i in free], vocabulary, device)
        choices[at] = noise.add_(scores[at]).argmax(dim=-1)
    if narrowed:
        groups = candidates_of(
            scores[torch.tensor(narrowed, device=device)], [rows[i].sampling for i in narrowed]
        )
        for members, (ids, kept) in groups:
            keys = [rows[narrowed[member]].noise_key for member in members]
            if ids.shape[1] == vocabulary:
                noise = gumbel_noise(keys, vocabulary, device).gather(1, ids)
            else:
                noise = gumbel_noise_at(keys, ids)
            best = (kept + noise).argmax(dim=-1, keepdim=True)
            at = torch.tensor([narrowed[member] for member in members], device=device)
            choices[at] = ids.gather(1, best)[:, 0]
    return choices


def _logprobs(
    logits: torch.Tensor,
    rows: Sequence[SampleRow],
    token_ids: Sequence[int],
    kernels: TokenKernels | None,
) -> tuple[TokenLogprobs | None, ...]:
    wanted = [index for index, row in enumerate(rows) if row.sampling.num_tops is not None]
    if not wanted:
        return ()
    found = token_logprobs(
        logits,
        wanted,
        [token_ids[index] for index in wanted],
        [rows[index].sampling.num_tops or 0 for index in wanted],
        kernels,
    )
    by_row = dict(zip(wanted, found, strict=True))
    return tuple(by_row.get(index) for index in range(len(rows)))
