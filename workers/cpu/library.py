"""The native library as Python sees it: its functions, its structures, its threads.

Calls release the interpreter's lock. Pointers are addresses of tensors that the caller keeps alive.
Knows the border, not what is computed behind it.
"""

import ctypes
import weakref
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import torch

from blockyard.workers.cpu.compiler import NativeUnavailable, build_library, choose_instructions

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

VERSION = 8
"""Of the signatures below; `by_version` in `native/library.cpp` says the same."""

NUMBERS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
"""Storage of keys and values, as `Numbers` of `native/keys_values.hpp` counts them."""


class NativeLayer(Structure):
    """`ByLayer` of `native/keys_values.hpp`."""

    _fields_ = (
        ("blocks", c_void_p),
        ("scales", c_void_p),
        ("block_stride", c_int64),
        ("kind_stride", c_int64),
        ("head_stride", c_int64),
        ("scale_block_stride", c_int64),
        ("scale_kind_stride", c_int64),
        ("scale_head_stride", c_int64),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("block_size", c_int32),
        ("numbers", c_int32),
    )


class NativeStep(Structure):
    """`ByStep` of `native/keys_values.hpp`."""

    _fields_ = (
        ("counts", c_void_p),
        ("lengths", c_void_p),
        ("tables", c_void_p),
        ("slots", c_void_p),
        ("tokens", c_int64),
        ("requests", c_int32),
        ("table_width", c_int32),
    )


class NativeForm(Structure):
    """`ByForm` of `native/attention.hpp`."""

    _fields_ = (
        ("sinks", c_void_p),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("window", c_int64),
    )


class NativeRotary(Structure):
    """`ByRotary` of `native/keys_values.hpp`."""

    _fields_ = (
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("positions", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("epsilon", c_float),
        ("half", c_int32),
    )


class NativeMatrix(Structure):
    """`ByMatrix` of `native/decoder.hpp`."""

    _fields_ = (
        ("data", c_void_p),
        ("bias", c_void_p),
        ("columns", c_int64),
        ("inputs", c_int64),
        ("storage", c_int32),
    )


class NativeAdapters(Structure):
    """`ByAdapters` of `native/low_rank.hpp`."""

    _fields_ = (
        *(("down", c_void_p), ("up", c_void_p), ("ranks", c_void_p)),
        *(("inputs", c_int64), ("outputs", c_int64), ("rank", c_int32)),
    )


class NativeDecoderLayer(Structure):
    """`ByDecoderLayer` of `native/decoder.hpp`."""

    _fields_ = (
        ("projections", NativeMatrix),
        ("output", NativeMatrix),
        ("gate_up", NativeMatrix),
        ("down", NativeMatrix),
        ("attention_norm", c_void_p),
        ("feed_forward_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
    )


class NativeModel(Structure):
    """`ByDecoder` of `native/decoder.hpp`."""

    _fields_ = (
        ("layers", POINTER(NativeDecoderLayer)),
        ("final_norm", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("head", NativeMatrix),
        ("hidden", c_int64),
        ("epsilon", c_float),
        ("head_epsilon", c_float),
        ("num_layers", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("half", c_int32),
    )


_Layer, _Step = POINTER(NativeLayer), POINTER(NativeStep)
_Form, _Rotary = POINTER(NativeForm), POINTER(NativeRotary)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "by_version": (c_int32, ()),
    "by_instructions": (c_char_p, ()),
    "by_advise_large_pages": (None, (c_void_p, c_int64)),
    "by_pool_new": (c_void_p, (c_int32,)),
    "by_pool_free": (None, (c_void_p,)),
    "by_packed_bytes": (c_int64, (c_int64, c_int64, c_int32)),
    "by_pack": (
        None,
        (c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int32, c_int64, c_int64, c_void_p),
    ),
    "by_unpack": (
        None,
        (c_void_p, c_void_p, c_int64, c_int64, c_int32, c_int64, c_int64, c_void_p),
    ),
    "by_look_up": (
        None,
        (c_void_p, c_void_p, c_int64, c_int64, c_int32, c_void_p, c_int64, c_void_p),
    ),
    "by_linear": (
        None,
        (
            *(c_void_p, c_void_p, c_int64, c_int64, c_int32, c_void_p),
            *(c_void_p, c_int64, c_int64, c_void_p, c_int64),
            *(c_void_p, POINTER(NativeAdapters), c_int32, c_int32),
        ),
    ),
    "by_write": (None, (c_void_p, _Layer, _Step, c_void_p, c_void_p, c_int64)),
    "by_rotate_and_write": (
        None,
        (c_void_p, _Layer, _Step, _Rotary, c_void_p, c_int64, c_int32),
    ),
    "by_plan_new": (c_void_p, (c_void_p, _Step, c_int32, c_int32)),
    "by_plan_free": (None, (c_void_p,)),
    "by_attend": (
        None,
        (
            *(c_void_p, c_void_p, _Layer, _Form),
            *(c_void_p, c_int64, c_void_p, c_int64),
        ),
    ),
    "by_decoder_new": (c_void_p, (POINTER(NativeModel),)),
    "by_decoder_free": (None, (c_void_p,)),
    "by_decoder_begin": (
        None,
        (c_void_p, c_void_p, _Step, c_void_p, c_void_p, c_void_p, c_int64, c_void_p),
    ),
    "by_decoder_adapt": (None, (c_void_p, c_void_p, POINTER(NativeAdapters))),
    "by_decoder_run": (None, (c_void_p, c_void_p, _Layer, _Form)),
    "by_decoder_attend": (None, (c_void_p, c_void_p, c_int32, _Layer, _Form, c_void_p)),
    "by_decoder_rows": (c_int64, (c_void_p,)),
    "by_decoder_feed_forward": (None, (c_void_p, c_void_p, c_int32, c_void_p)),
    "by_decoder_add": (None, (c_void_p, c_void_p, c_void_p)),
    "by_decoder_finish": (None, (c_void_p, c_void_p, c_void_p, c_int64)),
}


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
        for name, (answer, arguments) in _SIGNATURES.items():
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
