"""Puts a step's small integer arrays on the device, all in one copy. Units: bytes."""

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Upload"]

_ALIGNMENT = 4
"""Numbers of 4 bytes: kernels read some arrays 16 bytes at a time."""


class Upload:
    """int32 arrays in one piece of device memory, which lives as long as this.

    Args:
        device: where to.
        arrays: by name.
    """

    def __init__(self, device: torch.device, **arrays: npt.NDArray[np.int32]) -> None:
        offsets: dict[str, int] = {}
        size = 0
        for name, array in arrays.items():
            offsets[name] = size
            size += -(-array.size // _ALIGNMENT) * _ALIGNMENT
        # Page-locked memory, so that the copy does not make the host wait for the device.
        host = torch.empty(max(size, 1), dtype=torch.int32, pin_memory=device.type == "cuda")
        view = host.numpy()
        for name, array in arrays.items():
            view[offsets[name] : offsets[name] + array.size] = array.reshape(-1)
        self._tensor = host.to(device, non_blocking=True)
        base = self._tensor.data_ptr()
        self._addresses = {name: base + 4 * offset for name, offset in offsets.items()}

    def __getitem__(self, name: str) -> int:
        """The address of an array on the device."""
        return self._addresses[name]
