"""What kernels that read 16 bytes at a time ask of tensors of 16-bit numbers."""

import torch

__all__ = ["VECTOR", "check_vectors"]

VECTOR = 8
"""Numbers of 2 bytes in 16 bytes."""


def check_vectors(rows: torch.Tensor, *strides: int) -> None:
    """Refuse rows that cannot be read 16 bytes at a time.

    Args:
        rows: contiguous along the last axis.
        strides: numbers between what is read one after the other.

    Raises:
        ValueError: they begin or lie where no such read may.
    """
    if rows.stride(-1) != 1 or rows.data_ptr() % 16 or any(each % VECTOR for each in strides):
        raise ValueError(
            f"rows begin {rows.data_ptr() % 16} bytes past a multiple of 16, their numbers are "
            f"{rows.stride(-1)} apart and strides are {strides}: kernels read 16 bytes at a time"
        )
