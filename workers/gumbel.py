"""Standard Gumbel noise that depends on (seed, choice, position, token id) and on nothing else.

Token `t` takes word `t % 4` of Philox at counter `(t // 4, position, choice, 0)` under the seed as
key, so noise can be made for all tokens or for a few, with the same values.
"""

from collections.abc import Sequence

import torch

from blockyard.workers.philox import Words, philox4x32

__all__ = ["NoiseKey", "gumbel_noise", "gumbel_noise_at"]

_MASK = 0xFFFFFFFF

NoiseKey = tuple[int, int, int]
"""Seed, choice and position of one row."""


def gumbel_noise(
    keys: Sequence[NoiseKey], vocabulary: int, device: torch.device, first: int = 0
) -> torch.Tensor:
    """Noise of every token from `first` on, float64 `[rows, vocabulary]`."""
    end = first + vocabulary
    groups = torch.arange(first // 4, -(-end // 4), device=device)[None, :]
    words = torch.stack(_words(keys, groups), dim=-1).flatten(1)
    return _gumbel(words[:, first % 4 : first % 4 + vocabulary])


def gumbel_noise_at(keys: Sequence[NoiseKey], token_ids: torch.Tensor) -> torch.Tensor:
    """Noise of some tokens.

    Args:
        keys: one for each row.
        token_ids: int64 `[rows, tokens]`.

    Returns:
        Float64 of the same shape.
    """
    words = torch.stack(_words(keys, token_ids // 4), dim=-1)
    return _gumbel(words.gather(-1, (token_ids % 4)[..., None])[..., 0])


def _words(keys: Sequence[NoiseKey], groups: torch.Tensor) -> Words:
    """Four words for each row and group."""

    def column(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=groups.device)[:, None]

    return philox4x32(
        (
            groups,
            column([position for _, _, position in keys]),
            column([choice for _, choice, _ in keys]),
            torch.zeros_like(groups),
        ),
        (
            column([seed & _MASK for seed, _, _ in keys]),
            column([seed >> 32 for seed, _, _ in keys]),
        ),
    )


def _gumbel(bits: torch.Tensor) -> torch.Tensor:
    # The middle of each of the 2^32 intervals: never 0 or 1. Float64 holds it exactly.
    uniform = (bits.double() + 0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_()
