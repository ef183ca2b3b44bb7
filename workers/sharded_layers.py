"""The layers of a model that know of other ranks: those that sum, gather, or look rows up.

Columns need no class of their own: a linear with fewer of them is a linear. Which layer of a model
becomes what is decided in `sharding.py`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from blockyard.workers.collectives import Communicator
from blockyard.workers.partition import Span

__all__ = [
    "HeadLinear",
    "RowConv",
    "RowLinear",
    "SpreadRMSNorm",
    "split_embedding",
    "sum_outputs",
]


class RowLinear(nn.Linear):
    """A linear over this rank's part of the input; the ranks' products are summed.

    `reduce` ends the layer for whoever computes the `product` in another way.
    """

    def __init__(self, columns: int, whole: nn.Linear, communicator: Communicator) -> None:
        weight = whole.weight
        has_bias = whole.bias is not None
        super().__init__(columns, whole.out_features, has_bias, weight.device, weight.dtype)
        self.communicator = communicator

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`[..., columns]` to `[..., out_features]`, the same on every rank."""
        return self.reduce(self.product(input))

    def product(self, input: torch.Tensor) -> torch.Tensor:
        """This rank's part of the sum."""
        return linear(input, self.weight)

    def reduce(self, product: torch.Tensor) -> torch.Tensor:
        """The sum of the ranks' products, and the bias."""
        total = self.communicator.all_reduce(product)
        return total if self.bias is None else total + self.bias


class RowConv(nn.Module):
    """The same for GPT-2's way of keeping weights, `[columns, out_features]`."""

    def __init__(self, columns: int, whole: nn.Module, communicator: Communicator) -> None:
        super().__init__()
        weight, bias = whole.weight, whole.bias
        assert isinstance(weight, torch.Tensor) and isinstance(bias, torch.Tensor)
        self.weight = nn.Parameter(weight.new_empty(columns, weight.shape[1]))
        self.bias = nn.Parameter(bias.new_empty(bias.shape))
        self.communicator = communicator

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`[..., columns]` to `[..., out_features]`, the same on every rank."""
        return self.communicator.all_reduce(self.product(input)) + self.bias

    def product(self, input: torch.Tensor) -> torch.Tensor:
        """This rank's part of the sum."""
        return input @ self.weight


class HeadLinear(nn.Linear):
    """Logits from this rank's rows of the vocabulary, put together on rank 0.

    Every rank has `rows` of them, so that pieces are alike; what pads the last ranks' is cut off.
    On other ranks the answer is their own piece.

    Attributes:
        vocabulary: width of whole rows.
        apart: whether pieces are left apart, for who chooses from them; see
            `divided_sampling.py`.
    """

    def __init__(self, rows: int, whole: nn.Linear, communicator: Communicator) -> None:
        weight = whole.weight
        has_bias = whole.bias is not None
        super().__init__(whole.in_features, rows, has_bias, weight.device, weight.dtype)
        self.communicator = communicator
        self.vocabulary = whole.out_features
        self.apart = False

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`[..., hidden]` to `[..., vocabulary]` on rank 0."""
        return self.assemble(linear(input, self.weight, self.bias))

    def assemble(self, piece: torch.Tensor) -> torch.Tensor:
        """All ranks' pieces side by side, for whoever computes them in another way."""
        if self.apart:
            return piece
        return self.communicator.gather_columns(piece)[..., : self.vocabulary]


class SpreadRMSNorm(nn.Module):
    """An RMS norm over values that are spread over the ranks, as OLMo 2 has over all heads.

    Args:
        width: this rank's values.
        total: all values.
        epsilon: added to the mean square.
        counted: whether this rank's values enter the sum; false where a rank before holds the same.
        weight: the whole norm's, for its device and dtype.
        communicator: sums the squares.
    """

    def __init__(
        self,
        width: int,
        total: int,
        epsilon: float,
        counted: bool,
        weight: torch.Tensor,
        communicator: Communicator,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.new_empty(width))
        self.communicator = communicator
        self._total = total
        self._epsilon = epsilon
        self._counted = counted

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`[..., width]` to the same."""
        wide = hidden_states.to(torch.float32)
        squares = wide.pow(2).sum(-1, keepdim=True)
        if not self._counted:
            squares.zero_()
        mean = self.communicator.all_reduce(squares) / self._total
        normed = wide * torch.rsqrt(mean + self._epsilon)
        return (self.weight * normed).to(hidden_states.dtype)


def split_embedding(embedding: nn.Embedding, rows: Span, communicator: Communicator) -> None:
    """Have an embedding with only these rows of the vocabulary answer for all of it.

    Its own `forward` stays in use: models have embeddings that scale what they look up. Whoever
    keeps the rows in another way calls its new method `look_up_by`.
    """
    embedding.padding_idx = None  # it is for training, and may lie in another rank's rows
    look_up_own = embedding.forward

    def look_up_by(
        own_rows: Callable[[torch.Tensor], torch.Tensor], input: torch.Tensor
    ) -> torch.Tensor:
        elsewhere = (input < rows.start) | (input >= rows.stop)
        own = own_rows((input - rows.start).masked_fill(elsewhere, 0))
        return communicator.all_reduce(own.masked_fill(elsewhere[..., None], 0))

    embedding.forward = partial(look_up_by, look_up_own)  # type: ignore[method-assign]
    owner: Any = embedding
    owner.look_up_by = look_up_by


def sum_outputs(module: nn.Module, communicator: Communicator) -> None:
    """Have a module's output be summed over ranks, as for experts with columns on each."""

    def add(module: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        return communicator.all_reduce(output)

    module.register_forward_hook(add)
