"""Launches kernels on a GPU: CuPy's functions, torch's memory, torch's current stream.

A kernel takes one struct by value, held as a numpy record whose fields are set in place; pointers
are plain addresses. A launch allocates nothing, so it can be captured in a CUDA graph once its
kernel is loaded. Units: bytes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from blockyard.cuda.compiler import Compiler
from blockyard.cuda.sources import Build

__all__ = ["GpuKernel", "GpuLibrary", "Kernel", "KernelLibrary", "Launch", "address", "device_arch"]


class Kernel(Protocol):
    """A kernel that can be launched.

    Attributes:
        arguments: layout of the struct it takes.
    """

    arguments: np.dtype[np.void]

    def __call__(
        self, grid: int, block: int, arguments: npt.NDArray[np.void], shared_bytes: int = 0
    ) -> None:
        """Launch `grid` blocks of `block` threads; at least one of each.

        `arguments` has shape `[1]` and is read before this returns.
        """
        ...


class KernelLibrary(Protocol):
    """Where compiled kernels come from: a GPU's, or the emulation's."""

    def kernel(self, build: Build, name: str) -> Kernel:
        """The kernel `name` of a build, compiled and loaded when first asked for."""
        ...


@dataclass(slots=True)
class Launch:
    """A kernel with its arguments, made once and launched for layer after layer."""

    kernel: Kernel
    grid: int
    block: int
    arguments: npt.NDArray[np.void]
    shared_bytes: int = 0

    def run(self) -> None:
        """Launch with the arguments as they are now."""
        self.kernel(self.grid, self.block, self.arguments, self.shared_bytes)


class GpuLibrary:
    """Kernels on a CUDA device.

    Args:
        device: whose architecture is compiled for.
        cache_dir: where compiled kernels are kept.
    """

    def __init__(self, device: torch.device, cache_dir: Path) -> None:
        self._device = device
        self._compiler = Compiler(device_arch(device), cache_dir)
        self._kernels: dict[tuple[Build, str], GpuKernel] = {}

    def kernel(self, build: Build, name: str) -> "GpuKernel":
        """See `KernelLibrary`.

        Raises:
            CompileError: it does not compile.
        """
        found = self._kernels.get((build, name))
        if found is None:
            import cupy

            with torch.cuda.device(self._device):
                module = cupy.RawModule(path=str(self._compiler.compile(build).path))
                for each, layout in build.kernels.items():
                    self._kernels[build, each] = GpuKernel(
                        module.get_function(each), layout, self._device.index or 0
                    )
            found = self._kernels[build, name]
        return found


@dataclass(frozen=True, slots=True)
class _Stream:
    """All that CuPy wants of a stream."""

    ptr: int


class GpuKernel:
    """One loaded kernel; see `Kernel`."""

    def __init__(self, raw: Any, arguments: np.dtype[np.void], device_index: int) -> None:
        self.arguments = arguments
        raw.max_dynamic_shared_size_bytes = _most_shared_bytes(device_index)
        # The function behind the RawKernel: what stands before it asks for the device each time.
        self._function = raw.kernel
        self._device_index = device_index
        self._current_stream = torch._C._cuda_getCurrentRawStream

    def __call__(
        self, grid: int, block: int, arguments: npt.NDArray[np.void], shared_bytes: int = 0
    ) -> None:
        """Launch on torch's current stream; see `Kernel`.

        Asked for at every launch: while torch captures a CUDA graph, its current stream is the
        capturing one, and a launch on any other would be left out of the graph, or end it.
        """
        self._function(
            (grid,),
            (block,),
            (arguments,),
            shared_mem=shared_bytes,
            stream=_Stream(self._current_stream(self._device_index)),
        )


def address(tensor: torch.Tensor | None) -> int:
    """Where a tensor's first number lies; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def device_arch(device: torch.device) -> str:
    """The architecture to compile for: with Hopper's own instructions where there are any."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"{major}{minor}a" if (major, minor) == (9, 0) else f"{major}{minor}"


def _most_shared_bytes(device_index: int) -> int:
    import cupy

    return int(cupy.cuda.Device(device_index).attributes["MaxSharedMemoryPerBlockOptin"])
