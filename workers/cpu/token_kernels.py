"""Chooses, penalises and scores tokens on a CPU, in native code, a row's parts by several threads.

The twin of the plain torch in `workers/sampler.py`, `workers/logit_rules.py` and
`workers/logprobs.py`: the same tokens, since what may be the best is decided in float64, as there.
Knows no requests. Units: token ids.
"""

from collections.abc import Sequence

import numpy as np
import torch

from blockyard.cuda.logprobs import ScoredTokens
from blockyard.cuda.penalties import RowPenalties
from blockyard.cuda.sampling import ChosenTokens, RowSampling
from blockyard.workers.cpu.library import NativePool

__all__ = ["NativeTokens"]

_SAMPLING = np.dtype(
    {
        "names": [
            *("top_p", "min_p", "seed", "temperature"),
            *("top_k", "choice", "position"),
        ],
        "formats": ["f8", "f8", "u8", "f4", "i4", "u4", "u4"],
    }
)
"""`ByRowSampling` of `native/sampling.hpp`."""

_PENALTIES = np.dtype(
    {
        "names": ["in_prompt", "produced", "row", "repetition", "frequency", "presence"],
        "formats": ["u8", "u8", "i8", "f4", "f4", "f4"],
        "itemsize": 40,
    }
)
"""`ByRowPenalties` of `native/penalties.hpp`."""


class NativeTokens:
    """See `TokenKernels`. Scores of chosen tokens are float64.

    Args:
        pool: the threads it runs on.
    """

    def __init__(self, pool: NativePool) -> None:
        self._pool = pool

    def choose(
        self, logits: torch.Tensor, rows: Sequence[RowSampling], offset: int = 0
    ) -> ChosenTokens:
        """Choose a token for each row of `[rows, vocabulary]`, or of its part from `offset` on.

        Raises:
            ValueError: the part begins amid the four tokens of one counter, or is to be truncated.
        """
        if offset % 4:
            raise ValueError(f"the part begins at {offset}, which is no multiple of 4")
        if offset and any(row.truncates for row in rows):
            raise ValueError("a part of a vocabulary does not tell which tokens are likeliest")
        scores = _contiguous_rows(logits)
        vocabulary = scores.shape[1]
        wanted = np.array(
            [
                (
                    *(row.top_p, row.min_p, row.seed, row.temperature),
                    *(min(row.top_k, vocabulary), row.choice, row.position),
                )
                for row in rows
            ],
            dtype=_SAMPLING,
        )
        integers = torch.empty(2, len(rows), dtype=torch.int32)
        best = torch.empty(len(rows), dtype=torch.float64)
        if rows:
            self._pool.call.by_choose(
                self._pool.address,
                scores.data_ptr(),
                scores.stride(0),
                vocabulary,
                offset,
                wanted.ctypes.data,
                len(rows),
                integers[0].data_ptr(),
                best.data_ptr(),
                integers[1].data_ptr(),
            )
        return ChosenTokens(integers[0], best, integers[1])

    def penalise(self, scores: torch.Tensor, rows: Sequence[RowPenalties]) -> None:
        """Change some rows of scores in place, each at most once.

        Raises:
            ValueError: scores are not float32, or lie apart.
        """
        if scores.dtype is not torch.float32 or scores.stride(1) != 1:
            raise ValueError(f"scores are {scores.dtype} with strides {scores.stride()}")
        wanted = np.array(
            [
                (
                    *(row.in_prompt.data_ptr(), row.produced.data_ptr(), row.row),
                    *(row.repetition, row.frequency, row.presence),
                )
                for row in rows
            ],
            dtype=_PENALTIES,
        )
        self._pool.call.by_penalise(
            self._pool.address,
            scores.data_ptr(),
            scores.stride(0),
            scores.shape[1],
            wanted.ctypes.data,
            len(rows),
        )

    def score(
        self,
        logits: torch.Tensor,
        rows: Sequence[int],
        token_ids: Sequence[int],
        tops: Sequence[int],
    ) -> ScoredTokens:
        """Log probabilities of tokens and of the likeliest in their rows; see `score_tokens`."""
        scores = _contiguous_rows(logits)
        most = max(tops, default=0)
        asked = np.array((rows, token_ids, tops), dtype=np.int64)
        logprobs = torch.zeros(len(rows), 1 + most, dtype=torch.float32)
        ids = torch.zeros(len(rows), 1 + most, dtype=torch.int32)
        self._pool.call.by_score(
            self._pool.address,
            scores.data_ptr(),
            scores.stride(0),
            scores.shape[1],
            *(asked[part].ctypes.data for part in range(3)),
            len(rows),
            most,
            logprobs.data_ptr(),
            ids.data_ptr(),
        )
        return ScoredTokens(logprobs, ids)


def _contiguous_rows(logits: torch.Tensor) -> torch.Tensor:
    """As float32, with the scores of each row side by side."""
    scores = logits.float()
    return scores if scores.stride(1) == 1 or scores.shape[1] == 1 else scores.contiguous()
