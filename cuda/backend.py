"""What attention over a block-structured KV cache must do, whoever does it.

A backend is asked once a step (`begin`) and answers with the step's attention, which every layer
then uses. Some backends also fuse what stands around attention in a layer (`FusedStep`,
`FusedLayers`), choose tokens (`TokenKernels`) and move blocks (`BlockMoves`); who lacks that is
served by plain torch. Does not know models or requests. Units: tokens and block ids; a slot is
`block_id * block_size + offset`.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from blockyard.cuda.logprobs import ScoredTokens
from blockyard.cuda.penalties import RowPenalties
from blockyard.cuda.sampling import ChosenTokens, RowSampling

__all__ = [
    "AttentionBackend",
    "AttentionBatch",
    "AttentionForm",
    "AttentionStep",
    "BlockMoves",
    "FusedLayers",
    "FusedStep",
    "HeadShape",
    "LayerKV",
    "StaticDecode",
    "StaticDecodeBackend",
    "TokenKernels",
]


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Where the tokens of one step are and what each may see.

    Request `i` owns `counts[i]` consecutive tokens of the step. Its last one sits at position
    `lengths[i] - 1`, and each token sees the positions up to its own.

    Attributes:
        counts: int32 `[requests]`, tokens computed in this step, at least 1; on the host.
        lengths: int32 `[requests]`, tokens in the cache after this step; on the host. 0, with a
            count of 1, marks a row that only fills up the step: its output is 0.
        block_tables: int32 `[requests, widest]` on the device; entries past a request's own blocks
            are any valid block id and must not be trusted.
        slots: int64 `[tokens]` on the device, where each token's key and value go.
        block_size: token slots in a block.
        host_tables: `block_tables` on the host, which a backend needs to see that requests share
            leading blocks; None gives up what it could save there.
    """

    counts: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    block_tables: torch.Tensor
    slots: torch.Tensor
    block_size: int
    host_tables: npt.NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """The formula of one layer's attention.

    With `s = scale * q.k`, then `s = soft_cap * tanh(s / soft_cap)` where there is a cap, a token
    at position `p` weighs the positions `max(0, p - window + 1) .. p` by `exp(s)` over their sum,
    to which a head with a sink adds `exp(sink)`: a score that takes weight and brings no value.

    Attributes:
        scale: on every score, before the cap.
        window: positions that a token sees, its own included; None means all.
        soft_cap: bound of the scores; None means unbounded.
        sinks: float32 `[heads]` on the device, one score a query head; None means no sinks.
    """

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        if self.window is not None and self.window < 1:
            raise ValueError(f"the window is {self.window} tokens; it holds at least the token")
        if self.soft_cap is not None and self.soft_cap <= 0:
            raise ValueError(f"the soft cap is {self.soft_cap}; it must be positive")


@dataclass(frozen=True, slots=True)
class LayerKV:
    """One layer's part of the pool.

    Attributes:
        blocks: `[blocks, 2 (K, V), kv heads, block_size, head_dim]`, a view that is contiguous
            only below the head. Slots that no token was written to may hold anything, NaN
            included.
        scales: float32, what a stored number is multiplied by to be itself; None for pools of a
            model's own dtype. For float8 `[2, kv heads]`, given. For int8
            `[blocks, 2, kv heads, block_size]`, made by who writes a slot.
    """

    blocks: torch.Tensor
    scales: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Shape and storage of one rank's attention, for `AttentionBackend.refusal`."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    kv_dtype: torch.dtype


class AttentionStep(Protocol):
    """The attention of one step; used by every layer in turn."""

    def write(self, kv: LayerKV, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store `keys` and `values`, `[tokens, kv heads, head_dim]`, at the batch's slots."""
        ...

    def attend(self, kv: LayerKV, queries: torch.Tensor, form: AttentionForm) -> torch.Tensor:
        """Attention of `queries`, `[tokens, heads, head_dim]`, over each request's own blocks.

        Query head `h` reads KV head `h // (heads // kv heads)`. Returns the shape of `queries`.
        """
        ...


@runtime_checkable
class FusedStep(Protocol):
    """An `AttentionStep` that also rotates what it writes."""

    def rotate_and_write(
        self,
        kv: LayerKV,
        projected: torch.Tensor,
        cosines: torch.Tensor,
        sines: torch.Tensor,
        heads: int,
    ) -> torch.Tensor:
        """Apply rotary positions to queries and keys; store keys and values at the slots.

        Args:
            kv: where keys and values go.
            projected: `[tokens, (heads + 2 * kv heads) * head_dim]`: all queries, keys, values.
            cosines, sines: float32 `[tokens, rotated / 2]`; the first `rotated` numbers of a head
                turn, number `i` with `i + rotated / 2`, and the others stay.
            heads: query heads.

        Returns:
            The turned queries, `[tokens, heads, head_dim]`.
        """
        ...


class StaticDecode(Protocol):
    """Attention of steps of one token a request in memory that stays where it is.

    What differs between two steps of as many rows and of equal `fill` is in that memory alone, so
    that launches which were captured once can be replayed.
    """

    def fill(self, batch: AttentionBatch, rows: int) -> Hashable:
        """Have `step(rows)` be that of `batch`, whose requests compute one token each.

        Rows past the requests write to the null slot and attend to nothing. All is queued on the
        device. Returns what, beside the number of rows, decides which kernels are launched.
        """
        ...

    def step(self, rows: int) -> AttentionStep:
        """The step last filled in, of so many rows."""
        ...


@runtime_checkable
class StaticDecodeBackend(Protocol):
    """An `AttentionBackend` whose decode steps can be captured in CUDA graphs."""

    def static_refusal(self, shape: HeadShape) -> str | None:
        """Why steps of layers of this shape cannot be; None when they can."""
        ...

    def static_decode(
        self, most_rows: int, widest: int, block_size: int, null_slot: int
    ) -> StaticDecode:
        """Memory for steps of at most `most_rows` rows and `widest` blocks of a request.

        Rows that only fill up a step write to `null_slot`, which no request reads.
        """
        ...


class FusedLayers(Protocol):
    """What stands between the large multiplications of a layer, each in one pass over memory.

    Rows are contiguous; sums are taken in float32 whatever the dtype.
    """

    def add_rms_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`hidden + residual`, `[tokens, width]`, normalised and times `weight`; and the sum."""
        ...

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Rows of the last axis normalised and times `weight`; for heads, `[.., head_dim]`."""
        ...

    def silu_and_multiply(self, gate_and_up: torch.Tensor) -> torch.Tensor:
        """`silu(gate) * up` of `[tokens, 2 * width]`, gate first."""
        ...

    def gelu_and_multiply(self, gate_and_up: torch.Tensor) -> torch.Tensor:
        """`gelu(gate) * up` with the tanh form of gelu, of `[tokens, 2 * width]`, gate first."""
        ...


class TokenKernels(Protocol):
    """Choosing tokens and scoring them on the device, without a sort.

    The noise of a choice is that of `workers/gumbel.py`; truncation is min-p, top-k, top-p in this
    order, over what the ones before have left.
    """

    def choose(
        self, logits: torch.Tensor, rows: Sequence[RowSampling], offset: int = 0
    ) -> ChosenTokens:
        """Choose a token for each row of `[rows, vocabulary]`, or of its part from `offset` on."""
        ...

    def penalise(self, scores: torch.Tensor, rows: Sequence[RowPenalties]) -> None:
        """Change some rows of scores, float32 `[all rows, vocabulary]`, in place."""
        ...

    def score(
        self,
        logits: torch.Tensor,
        rows: Sequence[int],
        token_ids: Sequence[int],
        tops: Sequence[int],
    ) -> ScoredTokens:
        """Log probabilities of tokens and of the likeliest in their rows; see `score_tokens`."""
        ...


class BlockMoves(Protocol):
    """Moves whole blocks of one pool; pairs are block ids, where from and where to.

    Queued on the device in order of calls; no block may be written twice in one call, nor be both
    read and written.
    """

    def swap_out(self, moves: Sequence[tuple[int, int]]) -> None:
        """From the device to the host."""
        ...

    def swap_in(self, moves: Sequence[tuple[int, int]]) -> None:
        """From the host to the device."""
        ...

    def copy(self, moves: Sequence[tuple[int, int]]) -> None:
        """Within the device."""
        ...


class AttentionBackend(Protocol):
    """One way of computing attention on one kind of device."""

    @property
    def sampler(self) -> TokenKernels | None:
        """Kernels that choose tokens, or None where plain torch does it."""
        ...

    def mover(self, blocks: torch.Tensor, host_blocks: torch.Tensor) -> BlockMoves | None:
        """What moves blocks of two tensors, `[blocks, ...]`, or None where plain copies do."""
        ...

    @property
    def fused(self) -> FusedLayers | None:
        """Fused layers on the same device, or None where plain torch does as well."""
        ...

    def refusal(self, shape: HeadShape, form: AttentionForm) -> str | None:
        """Why layers of this shape and form cannot be served; None when they can."""
        ...

    def begin(self, batch: AttentionBatch) -> AttentionStep:
        """Prepare what all layers of a step share."""
        ...
