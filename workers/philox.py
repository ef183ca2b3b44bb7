"""Philox4x32-10, a counter-based random number generator, in torch integer operations.

The same counter and key give the same bits on every device and in every batch, because nothing is
remembered between calls. Numbers are 32-bit, carried in int64 tensors.
"""

import torch

__all__ = ["philox4x32"]

_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_MASK = 0xFFFFFFFF

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox4x32(counter: Words, key: tuple[torch.Tensor, torch.Tensor]) -> Words:
    """Four random 32-bit words for each counter.

    Args:
        counter: four int64 tensors of 32-bit values, of shapes that broadcast together.
        key: two int64 tensors of 32-bit values, of shapes that broadcast with them.
    """
    word_0, word_1, word_2, word_3 = counter
    key_0, key_1 = key
    for _ in range(_ROUNDS):
        high_0, low_0 = _multiply(_MULTIPLIER_0, word_0)
        high_1, low_1 = _multiply(_MULTIPLIER_1, word_2)
        word_0, word_1 = high_1 ^ word_1 ^ key_0, low_1
        word_2, word_3 = high_0 ^ word_3 ^ key_1, low_0
        key_0, key_1 = (key_0 + _WEYL_0) & _MASK, (key_1 + _WEYL_1) & _MASK
    return word_0, word_1, word_2, word_3


def _multiply(multiplier: int, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low half of a 32 x 32 bit product.

    The product may pass the sign bit of int64; its low 64 bits stay right, and masking after the
    arithmetic shift takes the copies of the sign away.
    """
    product = word * multiplier
    return (product >> 32) & _MASK, product & _MASK
