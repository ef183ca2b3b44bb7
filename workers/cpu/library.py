"""The native library as Python sees it: its functions and its threads.

Calls release the interpreter's lock. Pointers are addresses of tensors that the caller keeps alive.
Knows the border, not what is computed behind it.
"""

import ctypes
import weakref
from functools import cache
from typing import Any

import torch

from blockyard.workers.cpu.compiler import NativeUnavailable, build_library, choose_instructions
from blockyard.workers.cpu.signatures import (
    NUMBERS,
    SIGNATURES,
    VERSION,
    NativeAdapters,
    NativeDecoderLayer,
    NativeForm,
    NativeLayer,
    NativeMatrix,
    NativeModel,
    NativeRotary,
    NativeStep,
)

__all__ = [
    "NUMBERS",
    "NativeAdapters",
    "NativeDecoderLayer",
    "NativeForm",
    "NativeLayer",
    "NativeLibrary",
    "NativeMatrix",
    "NativeModel",
    "NativePool",
    "NativeRotary",
    "NativeStep",
    "load_library",
    "native_step",
]


class NativeLibrary:
    """The functions of a built library, by name, with checked signatures.

    Args:
        path: the shared object.

    Attributes:
        call: the functions.
        instructions: name of the set that they use: what they were compiled for, or the next slower
            one where the system refuses the matrix unit.

    Raises:
        NativeUnavailable: it cannot be loaded, or was built from other signatures.
    """

    def __init__(self, path: str) -> None:
        try:
            loaded = ctypes.CDLL(path)
        except OSError as error:
            raise NativeUnavailable(f"{path} cannot be loaded: {error}") from error
        for name, (answer, arguments) in SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = answer, arguments
        if loaded.by_version() != VERSION:
            raise NativeUnavailable(f"{path} has version {loaded.by_version()}, not {VERSION}")
        self.call = loaded
        self.instructions: str = loaded.by_instructions().decode()

    def pool(self, threads: int) -> "NativePool":
        """A pool of `threads` threads, the caller's own among them."""
        return NativePool(self, threads)


class NativePool:
    """Threads of the library; they end with this object. Used by one thread at a time.

    Attributes:
        address: of the pool.
        call: the library's functions.
        threads: how many work, the caller among them.
    """

    def __init__(self, library: NativeLibrary, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"a pool of {threads} threads; at least the caller works")
        self.call = library.call
        self.threads = threads
        self.address: int = library.call.by_pool_new(threads)
        weakref.finalize(self, library.call.by_pool_free, self.address)


@cache
def load_library(instructions: str | None = None) -> NativeLibrary:
    """The library of this machine, built if need be.

    Args:
        instructions: name of the set it uses; None means what `build_library` takes by itself.

    Raises:
        NativeUnavailable: with the reason.
    """
    wanted = choose_instructions(instructions) if instructions else None
    return NativeLibrary(str(build_library(instructions=wanted)))


def native_step(
    counts: Any, lengths: Any, tables: torch.Tensor, slots: torch.Tensor
) -> tuple[NativeStep, tuple[Any, ...]]:
    """A step's geometry for the library, and what must be kept alive as long as it is used."""
    kept = (counts, lengths, tables.contiguous(), slots.contiguous())
    step = NativeStep(
        counts.ctypes.data,
        lengths.ctypes.data,
        kept[2].data_ptr(),
        kept[3].data_ptr(),
        slots.shape[0],
        len(counts),
        tables.shape[1],
    )
    return step, kept
