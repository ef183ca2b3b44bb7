"""The kernels that are compiled and measured before anything is released: one table.

For every model that is served, each kernel in the dtypes, head sizes and groups it takes, and the
registers that a thread may use. Other combinations are built when they are asked for.
"""

from dataclasses import dataclass
from itertools import product

import torch

from blockyard.cuda.block_copy import BLOCK_COPY_BUILD
from blockyard.cuda.cache_write import cache_write_build
from blockyard.cuda.decode import cascade_build, decode_build
from blockyard.cuda.fused_layers import layers_build
from blockyard.cuda.penalties import PENALTIES_BUILD
from blockyard.cuda.prefill import prefill_build
from blockyard.cuda.sampling import logits_build, sampling_build
from blockyard.cuda.sources import Build

__all__ = ["ARCHS", "Configuration", "configurations"]

ARCHS = ("90", "90a", "100")
"""Hopper, Hopper with its own instructions, Blackwell of data centres."""

_SHARING = {
    # Query heads that share a KV head, by head size, in the models of docs/models.md.
    64: (1, 2, 3, 4, 7, 8),
    80: (1,),
    96: (1, 4),
    128: (1, 2, 3, 4, 5, 6, 7, 8, 12, 16),
    256: (1, 2, 4, 8),
}
_CAPPED = ((256, 2), (128, 2), (256, 1))
"""Head size and sharing of models with a soft cap on attention scores."""


@dataclass(frozen=True)
class Configuration:
    """A build, and the most registers a thread of each of its kernels may use.

    `archs` are those that its instructions exist on.
    """

    build: Build
    registers: dict[str, int]
    archs: tuple[str, ...] = ARCHS


def configurations() -> tuple[Configuration, ...]:
    """The whole table."""
    return (*_decode(), *_prefill(), *_cascade(), *_layers(), *_cache_write(), *_others())


def _decode() -> list[Configuration]:
    bf16, fp16, fp8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
    shapes = [(dim, sharing) for dim, group in _SHARING.items() for sharing in group]
    builds = [
        decode_build(bf16, kv_dtype, dim, sharing, 16, soft_cap=False)
        for kv_dtype, (dim, sharing) in product((bf16, fp8), shapes)
    ]
    builds += [
        decode_build(fp16, kv_dtype, dim, sharing, 16, soft_cap=False)
        for kv_dtype, (dim, sharing) in product((fp16, fp8), ((64, 3), (128, 4), (256, 8)))
    ]
    builds += [
        decode_build(bf16, kv_dtype, dim, sharing, 16, soft_cap=True)
        for kv_dtype, (dim, sharing) in product((bf16, fp8), _CAPPED)
    ]
    # Other block sizes change only how an address is found.
    builds += [decode_build(bf16, bf16, 128, 4, size, soft_cap=False) for size in (8, 32, 64)]
    return [
        Configuration(build, {"decode_attention": 255, "merge_partials": 64}) for build in builds
    ]


def _prefill() -> list[Configuration]:
    bf16, fp16, fp8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
    shapes = [(dim, sharing) for dim, group in _SHARING.items() for sharing in group]
    builds = [prefill_build(bf16, bf16, *shape, 16, soft_cap=False) for shape in shapes]
    few = ((64, 3), (128, 4), (128, 8), (256, 8))
    builds += [prefill_build(bf16, fp8, *shape, 16, soft_cap=False) for shape in few]
    builds += [prefill_build(fp16, fp16, *shape, 16, soft_cap=False) for shape in few]
    builds += [
        prefill_build(bf16, kv_dtype, *shape, 16, soft_cap=True)
        for kv_dtype, shape in product((bf16, fp8), _CAPPED)
    ]
    allowed = {"prefill_attention": 255, "merge_tiles": 64}
    by_warpgroups = [
        prefill_build(dtype, dtype, *shape, 16, soft_cap=cap, warpgroups=True)
        for dtype, shape, cap in (
            *((bf16, shape, False) for shape in ((64, 3), (64, 8), (128, 4), (128, 5), (128, 8))),
            *((fp16, (128, 4), False), (bf16, (128, 2), True)),
        )
    ]
    return [
        *(Configuration(build, allowed) for build in builds),
        *(Configuration(build, allowed, ("90a",)) for build in by_warpgroups),
    ]


def _cascade() -> list[Configuration]:
    bf16, fp8 = torch.bfloat16, torch.float8_e4m3fn
    plain = ((64, 3), (64, 8), (96, 1), (128, 1), (128, 4), (128, 5), (128, 8), (256, 8))
    decodes = [decode_build(bf16, bf16, *shape, 16, soft_cap=False) for shape in plain]
    decodes += [decode_build(bf16, fp8, *shape, 16, soft_cap=False) for shape in plain[3:]]
    decodes += [decode_build(bf16, bf16, *shape, 16, soft_cap=True) for shape in _CAPPED]
    return [Configuration(cascade_build(each), {"attend_shared_prefix": 255}) for each in decodes]


def _layers() -> list[Configuration]:
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    # Heads, then the hidden sizes by how much of a row a thread holds.
    builds = [layers_build(bf16, bf16, width) for width in (64, 512, 2048, 4096, 8192, 16384)]
    builds += [layers_build(bf16, fp32, width) for width in (64, 512, 2048, 4096, 8192)]
    builds += [layers_build(fp16, fp16, width) for width in (64, 2048, 4096, 8192)]
    names = ("rms_norm", "silu_and_multiply", "gelu_and_multiply")
    return [Configuration(build, dict.fromkeys(names, 128)) for build in builds]


def _cache_write() -> list[Configuration]:
    bf16, fp16, fp8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
    builds = [cache_write_build(bf16, kv, dim, 16) for kv in (bf16, fp8) for dim in _SHARING]
    builds += [cache_write_build(fp16, kv, 128, 16) for kv in (fp16, fp8)]
    return [
        Configuration(build, dict.fromkeys(("rotate_and_write", "write_cache"), 128))
        for build in builds
    ]


def _others() -> list[Configuration]:
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    return [
        *(Configuration(sampling_build(dtype), {"sample_rows": 64}) for dtype in dtypes),
        *(
            Configuration(logits_build("logprobs.cu", dtype), {"score_tokens": 64})
            for dtype in dtypes
        ),
        Configuration(PENALTIES_BUILD, {"penalise_rows": 64}),
        Configuration(BLOCK_COPY_BUILD, {"copy_blocks": 64}),
    ]
