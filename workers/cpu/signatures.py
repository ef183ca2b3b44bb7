"""What passes the border of the native library: its structures, and what its functions take.

Knows names and types alone. Pointers are addresses of tensors that the caller keeps alive.
"""

from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p
from typing import Any

import torch

__all__ = [
    "NUMBERS",
    "SIGNATURES",
    "VERSION",
    "NativeAdapters",
    "NativeDecoderLayer",
    "NativeForm",
    "NativeLayer",
    "NativeMatrix",
    "NativeModel",
    "NativeRotary",
    "NativeStep",
]

VERSION = 10
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
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "by_version": (c_int32, ()),
    "by_instructions": (c_char_p, ()),
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
    "by_choose": (
        None,
        (
            *(c_void_p, c_void_p, c_int64, c_int64, c_int64),
            *(c_void_p, c_int64, c_void_p, c_void_p, c_void_p),
        ),
    ),
    "by_score": (
        None,
        (
            *(c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p),
            *(c_int64, c_int64, c_void_p, c_void_p),
        ),
    ),
    "by_penalise": (None, (c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_int64)),
}
"""What each function returns and takes."""
