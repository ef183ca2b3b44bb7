"""Keeps answers inside a grammar: which tokens may come next, computed while the model runs.

llguidance does the work: it needs neither torch nor a GPU, answers in some 50 microseconds for any
vocabulary, and its state is cheap to copy. A grammar's state follows from the answer's tokens, so
a request that comes back after a preemption is where it was. Units: token ids.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from blockyard.workers.description import describe_model

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["GrammarCompiler", "GrammarState", "grammars_of"]

_BITS = 32


class GrammarState:
    """One answer inside its grammar. Make it with `GrammarCompiler.begin`."""

    def __init__(self, matcher: "LLMatcher", words: int, pool: ThreadPoolExecutor) -> None:
        self._matcher = matcher
        self._pool = pool
        self._mask: npt.NDArray[np.int32] = np.zeros(words, dtype=np.int32)
        self._computing: Future[None] | None = None

    def record(self, token_ids: Sequence[int]) -> None:
        """Go on by tokens of the answer; what comes after its end changes nothing."""
        self._wait()
        for token_id in token_ids:
            if self._matcher.is_stopped():
                return
            self._matcher.consume_token(token_id)

    def prepare(self) -> None:
        """Begin to compute which tokens may come next, beside whatever runs now."""
        if self._computing is None:
            self._computing = self._pool.submit(self._fill)

    def apply(self, scores: torch.Tensor) -> None:
        """Leave out of one row's scores, `[vocabulary]`, what may not come next."""
        self.prepare()
        self._wait()
        words = torch.from_numpy(self._mask).to(scores.device)
        bits = torch.arange(_BITS, device=scores.device, dtype=torch.int32)
        allowed = ((words[:, None] >> bits) & 1).bool().flatten()[: len(scores)]
        scores.masked_fill_(~allowed, float("-inf"))

    def copy(self) -> "GrammarState":
        """The same place, for a fork to go on from."""
        self._wait()
        return GrammarState(self._matcher.deep_copy(), len(self._mask), self._pool)

    def _fill(self) -> None:
        if self._matcher.is_error():
            self._mask.fill(0)
            return
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)

    def _wait(self) -> None:
        if self._computing is not None:
            self._computing.result()
            self._computing = None


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
        # Takes a second or two for a large vocabulary: begun now, so that no request waits for it.
        self._tokenizer = self._pool.submit(
            _read_tokenizer, directory / "tokenizer.json", vocabulary, list(eos_token_ids)
        )

    def begin(self, grammar: str, produced: Sequence[int]) -> GrammarState:
        """The state after some tokens of an answer.

        A grammar that cannot be used lets no token through, which ends its request alone.
        """
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer.result(), grammar, log_level=0)
        state = GrammarState(matcher, self._words, self._pool)
        state.record(produced)
        return state


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
