"""Keeps answers inside a grammar: which tokens may come next, computed while the model runs.

llguidance does the work: it needs neither torch nor a GPU, answers in some 50 microseconds for any
vocabulary, and its state is cheap to copy. A grammar's state follows from the answer's tokens, so
a request that comes back after a preemption is where it was. Units: token ids.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from blockyard.workers.description import describe_model

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["GrammarCompiler", "GrammarState", "apply_masks", "grammars_of", "prepare_masks"]

_BITS = 32
_MOST_KEPT = 128
"""Grammars that are kept as read: many requests have the same one."""

_ADDED = np.array(
    [[0.0 if byte >> bit & 1 else -np.inf for bit in range(8)] for byte in range(256)], np.float32
)
"""What a byte of a mask adds to the scores of its eight tokens. Adding it takes a fifth of the time
of setting them."""


class GrammarState:
    """One answer inside its grammar. Make it with `GrammarCompiler.begin`."""

    def __init__(self, matcher: "LLMatcher", words: int, pool: ThreadPoolExecutor) -> None:
        self._matcher = matcher
        self._pool = pool
        self._mask: npt.NDArray[np.int32] = np.zeros(words, dtype=np.int32)
        self._filled = False
        self._computing: Future[None] | None = None

    def record(self, token_ids: Sequence[int]) -> None:
        """Go on by tokens of the answer; what comes after its end changes nothing."""
        self._wait()
        for token_id in token_ids:
            self._filled = False
            if self._matcher.is_stopped():
                return
            self._matcher.consume_token(token_id)

    @property
    def mask(self) -> npt.NDArray[np.int32]:
        """Which tokens may come next: int32 `[words]`, a bit for each token, the lowest first."""
        if not self._filled:
            if self._computing is None:
                self._fill()
            self._wait()
        return self._mask

    def allows(self, token_id: int) -> bool:
        """Whether a token may come next, as `mask` has it; takes less time than that."""
        self._wait()
        if not self._filled and not self._matcher.is_stopped():
            # Where a text is given, a mask has only its usual first token, no shorter piece.
            given = self._matcher.compute_ff_tokens()
            if given:
                return bool(given[0] == token_id)
            return bool(self._matcher.validate_tokens([token_id]))
        return bool(self.mask[token_id // _BITS] >> token_id % _BITS & 1)

    def copy(self) -> "GrammarState":
        """The same place, for a fork to go on from."""
        self._wait()
        return GrammarState(self._matcher.deep_copy(), len(self._mask), self._pool)

    def _fill(self) -> None:
        if self._matcher.is_error():
            self._mask.fill(0)
        else:
            self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._filled = True

    def _wait(self) -> None:
        if self._computing is not None:
            self._computing.result()
            self._computing = None


def prepare_masks(states: Sequence[GrammarState]) -> None:
    """Begin to compute what may come next in each answer, beside whatever runs now."""
    waiting = [state for state in states if not state._filled and state._computing is None]
    if waiting:
        # One piece of work for all: handing over takes as long as many a mask.
        computing = waiting[0]._pool.submit(_fill_all, waiting)
        for state in waiting:
            state._computing = computing


def apply_masks(scores: torch.Tensor, states: Mapping[int, GrammarState]) -> None:
    """Leave out of scores, float32 `[rows, vocabulary]`, what may not come next; in place.

    `states` are those of the rows that keep to a grammar.
    """
    rows, vocabulary = scores.shape
    masks = np.full((rows, -(-vocabulary // _BITS)), -1, dtype=np.int32)
    for row, state in states.items():
        masks[row] = state.mask
    if scores.device.type == "cpu":
        added = np.take(_ADDED, masks.view(np.uint8), axis=0).reshape(rows, -1)
        scores += torch.from_numpy(added)[:, :vocabulary]
        return
    words = torch.from_numpy(masks).to(scores.device, non_blocking=True)
    places = torch.arange(_BITS, device=scores.device, dtype=torch.int32)
    forbidden = ((words[:, :, None] >> places) & 1).eq(0).flatten(1)[:, :vocabulary]
    scores.masked_fill_(forbidden, float("-inf"))


def _fill_all(states: Sequence[GrammarState]) -> None:
    for state in states:
        state._fill()


class GrammarCompiler:
    """Knows a model's tokens.

    Args:
        directory: the model's, with its `tokenizer.json`.
        vocabulary: width of the scores.
        eos_token_ids: what may come once a grammar is fulfilled.
    """

    def __init__(self, directory: Path, vocabulary: int, eos_token_ids: Sequence[int]) -> None:
        self._words = -(-vocabulary // _BITS)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        self._kept: dict[str, LLMatcher] = {}
        # Takes a second or two for a large vocabulary: begun now, so that no request waits for it.
        self._tokenizer = self._pool.submit(
            _read_tokenizer, directory / "tokenizer.json", vocabulary, list(eos_token_ids)
        )

    def begin(self, grammar: str, produced: Sequence[int]) -> GrammarState:
        """The state after some tokens of an answer.

        A grammar that cannot be used lets no token through, which ends its request alone.
        """
        state = GrammarState(self._read(grammar).deep_copy(), self._words, self._pool)
        state.record(produced)
        return state

    def _read(self, grammar: str) -> "LLMatcher":
        """The grammar before its first token; those used last are kept."""
        from llguidance import LLMatcher

        found = self._kept.pop(grammar, None)
        if found is None:
            found = LLMatcher(self._tokenizer.result(), grammar, log_level=0)
        self._kept[grammar] = found
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return found


def grammars_of(directory: Path, vocabulary: int) -> GrammarCompiler | None:
    """The compiler for a model's answers; None where its files hold no tokenizer."""
    if not (directory / "tokenizer.json").exists():
        return None
    eos_token_ids = describe_model(directory, directory.name).eos_token_ids
    return GrammarCompiler(directory, vocabulary, eos_token_ids)


def _read_tokenizer(file: Path, vocabulary: int, eos_token_ids: list[int]) -> "LLTokenizer":
    # Imported where it is used: a worker without grammars does without it.
    from llguidance import LLTokenizer

    return LLTokenizer(
        file.read_text(encoding="utf-8"), n_vocab=vocabulary, eos_token=eos_token_ids
    )
