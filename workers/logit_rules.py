"""What one request changes in its scores before a token is chosen, and the tokens it goes by.

Made once for a handle and kept on the device. In order: logit bias, allowed tokens, bad words;
then, over many rows at once, grammars (`grammar.py`), and in `penalise` repetition, frequency and
presence penalties.
Knows the tokens so far as far as rules need them, because KV alone does not tell. Units: token ids.
"""

from collections.abc import Sequence

import torch

from blockyard.cuda.penalties import RowPenalties
from blockyard.scheduler.sampling import MAX_BAD_WORD_TOKENS, SamplingParams
from blockyard.workers.grammar import GrammarCompiler, GrammarState

__all__ = ["LogitRules", "penalise", "rules_for"]

_NO_TOKEN = -1
_ANY_TOKEN = -2


class LogitRules:
    """The rules of one handle, and its tokens so far.

    Args:
        sampling: the request's parameters.
        prompt_tokens: tokens of `known` that are the client's prompt.
        known: tokens so far, prompt first; more come by `record`.
        vocabulary: width of the scores.
        device: where the scores are.
        grammar: what the answer must keep to, after the tokens known.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        prompt_tokens: int,
        known: Sequence[int],
        vocabulary: int,
        device: torch.device,
        grammar: GrammarState | None = None,
    ) -> None:
        self.grammar = grammar
        self.sampling = sampling
        self._device = device
        self._num_known = len(known)
        self._bias = self._allowed = self._words = None
        if sampling.logit_bias:
            ids, values = zip(*sampling.logit_bias, strict=True)
            self._bias = self._ids(ids), torch.tensor(values, device=device)
        if sampling.allowed_token_ids:
            self._allowed = self._ids(sampling.allowed_token_ids)
        if sampling.bad_words:
            self._words = self._spread(sampling.bad_words)
        self._tail = self._ids([_NO_TOKEN] * MAX_BAD_WORD_TOKENS + list(known))[
            -MAX_BAD_WORD_TOKENS:
        ]
        width = vocabulary if sampling.penalised else 0
        self.in_prompt = torch.zeros(width, dtype=torch.bool, device=device)
        self.produced = torch.zeros(width, device=device)
        if sampling.penalised and known:
            self.in_prompt[self._ids(known[:prompt_tokens])] = True
            self._count(self._ids(known[prompt_tokens:]))

    @property
    def changes_scores(self) -> bool:
        """Whether it does so by anything but a grammar."""
        parts = (self._bias, self._allowed, self._words)
        return self.sampling.penalised or any(part is not None for part in parts)

    def record(self, position: int, token_ids: Sequence[int]) -> None:
        """Take in tokens from `position` on; those known already change nothing."""
        fresh = token_ids[max(0, self._num_known - position) :]
        if not fresh:
            return
        self._num_known = position + len(token_ids)
        if self.grammar is not None:
            self.grammar.record(fresh)
        if not self.sampling.penalised and self._words is None:
            return
        ids = self._ids(fresh)
        if self.sampling.penalised:
            self._count(ids)
        if self._words is not None:
            self._tail = torch.cat((self._tail, ids))[-MAX_BAD_WORD_TOKENS:]

    def child(self, sampling: SamplingParams) -> "LogitRules":
        """The rules of a fork, with the same tokens so far."""
        grammar = self.grammar.copy() if self.grammar is not None else None
        twin = LogitRules(sampling, 0, (), len(self.produced), self._device, grammar)
        twin._num_known, twin._tail = self._num_known, self._tail
        twin.in_prompt, twin.produced = self.in_prompt, self.produced.clone()
        return twin

    def penalties(self, row: int) -> RowPenalties:
        """What a kernel is told of the penalties of this row of scores."""
        sampling = self.sampling
        return RowPenalties(
            row,
            sampling.repetition_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
            self.in_prompt,
            self.produced,
        )

    def apply(self, scores: torch.Tensor) -> None:
        """Change the scores of one row, `[vocabulary]`, in place; all but grammar and penalties."""
        if self._bias is not None:
            ids, values = self._bias
            scores[ids] += values
        if self._allowed is not None:
            kept = scores[self._allowed]
            scores.fill_(float("-inf"))
            scores[self._allowed] = kept
        if self._words is not None:
            begins, last = self._words
            said = ((begins == self._tail) | (begins == _ANY_TOKEN)).all(dim=-1)
            # Not by index: which words were said is known on the device alone.
            scores.scatter_add_(0, last, torch.where(said, float("-inf"), 0.0))

    def _count(self, token_ids: torch.Tensor) -> None:
        # Whole numbers: their sum is exact in any order.
        self.produced.index_add_(0, token_ids, torch.ones(len(token_ids), device=self._device))

    def _spread(self, words: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """For each word what must have been said, aligned with the tail, and its last token."""
        begins = torch.full((len(words), MAX_BAD_WORD_TOKENS), _ANY_TOKEN)
        for row, word in enumerate(words):
            if len(word) > 1:
                begins[row, -(len(word) - 1) :] = torch.tensor(word[:-1])
        return begins.to(self._device), self._ids([word[-1] for word in words])

    def _ids(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def rules_for(
    sampling: SamplingParams,
    prompt_tokens: int,
    known: Sequence[int],
    vocabulary: int,
    device: torch.device,
    grammars: GrammarCompiler | None = None,
) -> LogitRules | None:
    """The rules of a handle; None when nothing changes its scores."""
    if not (
        sampling.penalised
        or sampling.logit_bias
        or sampling.allowed_token_ids
        or sampling.bad_words
        or sampling.grammar
    ):
        return None
    grammar = None
    if sampling.grammar and grammars is not None:
        grammar = grammars.begin(sampling.grammar, known[prompt_tokens:])
    return LogitRules(sampling, prompt_tokens, known, vocabulary, device, grammar)


def penalise(scores: torch.Tensor, rules: Sequence[LogitRules]) -> torch.Tensor:
    """Penalties of rows that have some.

    Args:
        scores: float32 `[rows, vocabulary]`, not changed.
        rules: one for each row.
    """
    produced = torch.stack([rule.produced for rule in rules])
    seen = torch.stack([rule.in_prompt for rule in rules]) | (produced > 0)
    repetition = _column(scores, [rule.sampling.repetition_penalty for rule in rules])
    repeated = torch.where(scores > 0, scores / repetition, scores * repetition)
    scores = torch.where(seen, repeated, scores)
    frequency = _column(scores, [rule.sampling.frequency_penalty for rule in rules])
    presence = _column(scores, [rule.sampling.presence_penalty for rule in rules])
    return scores - frequency * produced - presence * (produced > 0)


def _column(like: torch.Tensor, values: list[float]) -> torch.Tensor:
    return like.new_tensor(values)[:, None]
