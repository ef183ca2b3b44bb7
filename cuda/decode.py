"""Decode attention by kernel: one query token a request.

Blocks that many requests begin with are read once for all of them. Plans once for the layers of a
step that see the same positions, then launches up to three kernels a layer. The torch twin is
`ReferenceStep.attend`. Units: tokens, bytes.
"""

from dataclasses import dataclass

import numpy as np
import torch

from blockyard.cuda.attention_arguments import (
    MULTIPROCESSOR_BYTES,
    attention_defines,
    layer_key,
    padded_row_bytes,
    set_layer,
    set_output,
)
from blockyard.cuda.backend import AttentionForm, LayerKV
from blockyard.cuda.decode_plans import DecodePlans, DecodeRows, HeadGroup, StepPlans
from blockyard.cuda.launch import KernelLibrary, Launch, address
from blockyard.cuda.prefill import tile_rows, tile_shared_bytes
from blockyard.cuda.sources import Build

__all__ = [
    "MOST_SHARING",
    "DecodeAttention",
    "DecodeRows",
    "cascade_build",
    "decode_build",
    "decode_shared_bytes",
]

MOST_SHARING = 16
"""Most query heads of one KV head: the rows of a tile of the tensor core."""

_WARPS, _SLICE = 4, 16
_THREADS = 32 * _WARPS
_SHARED_BYTES = 100 << 10
"""What a thread block may take so that two of them fit on a multiprocessor."""

_MOST_STAGES = 6


def decode_build(
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    head_dim: int,
    sharing: int,
    block_size: int,
    soft_cap: bool,
) -> Build:
    """The build of the decode kernel for one shape; `sharing` query heads read one KV head."""
    stages = _stages(head_dim, kv_dtype)
    return Build.of(
        "decode.cu",
        **attention_defines(dtype, kv_dtype, head_dim, block_size),
        GROUP=sharing,
        SOFT_CAP=soft_cap,
        STAGES=stages,
        MIN_BLOCKS=2 if stages * _stage_bytes(head_dim, kv_dtype) <= _SHARED_BYTES else 1,
    )


def cascade_build(decode: Build) -> Build:
    """The build of the shared-prefix kernel that works with a build of the decode kernel."""
    defines = dict(decode.defines)
    kv_dtype = torch.float8_e4m3fn if defines["KV_FP8"] else torch.float16
    fits_twice = 2 * tile_shared_bytes(defines["HEAD_DIM"], kv_dtype) <= MULTIPROCESSOR_BYTES
    names = ("HEAD_DIM", "BF16", "KV_FP8", "BLOCK_SIZE", "GROUP", "SOFT_CAP")
    return Build.of(
        "cascade.cu",
        **{name: defines[name] for name in names},
        MIN_BLOCKS=2 if fits_twice else 1,
    )


def decode_shared_bytes(build: Build) -> int:
    """Dynamic shared memory of the decode kernel: its rings, or what its warps hand over."""
    defines = dict(build.defines)
    dim, sharing = defines["HEAD_DIM"], defines["GROUP"]
    kv_dtype = torch.float8_e4m3fn if defines["KV_FP8"] else torch.float16
    rings = defines["STAGES"] * _stage_bytes(dim, kv_dtype)
    return max(rings, 4 * _WARPS * sharing * (dim + 2))


def _stage_bytes(head_dim: int, kv_dtype: torch.dtype) -> int:
    """One stage of all warps: a slice of keys and one of values each."""
    return _WARPS * 2 * _SLICE * padded_row_bytes(head_dim, kv_dtype)


def _stages(head_dim: int, kv_dtype: torch.dtype) -> int:
    stages = _SHARED_BYTES // _stage_bytes(head_dim, kv_dtype)
    # Rows too wide for two thread blocks get one with a deep ring.
    return min(stages, _MOST_STAGES) if stages >= 3 else 3


class DecodeAttention:
    """Decode attention of one step.

    Args:
        library: where kernels come from.
        rows: whose tokens.
        slots: thread blocks that run at once.
        device: of all tensors.
        plans: how the work is shared out; None means anew for this step.
    """

    def __init__(
        self,
        library: KernelLibrary,
        rows: DecodeRows,
        slots: int,
        device: torch.device,
        plans: DecodePlans | None = None,
    ) -> None:
        self._library = library
        self._rows = rows
        self._plans = plans or StepPlans(rows, slots, device)
        self._launches: dict[tuple[object, ...], _Launches] = {}

    def attend(
        self, kv: LayerKV, queries: torch.Tensor, form: AttentionForm, output: torch.Tensor
    ) -> None:
        """Write the attention of the step's decode rows to their rows of `output`.

        `queries` and `output` are `[tokens, heads, head_dim]`, contiguous but for the tokens.
        """
        key = layer_key(kv, queries, form)
        launches = self._launches.get(key)
        if launches is None:
            launches = self._launches[key] = self._prepare(kv, queries, form)
        if launches.prefix is not None:
            set_layer(launches.prefix.arguments, kv, queries, form)
            launches.prefix.run()
        set_layer(launches.decode.arguments, kv, queries, form)
        set_output(launches.decode.arguments, form, output)
        launches.decode.run()
        if launches.merge is not None:
            set_output(launches.merge.arguments, form, output)
            launches.merge.run()

    def _prepare(self, kv: LayerKV, queries: torch.Tensor, form: AttentionForm) -> "_Launches":
        heads, head_dim = queries.shape[1:]
        kv_heads = kv.blocks.shape[2]
        sharing = heads // kv_heads
        build = decode_build(
            queries.dtype,
            kv.blocks.dtype,
            head_dim,
            sharing,
            self._rows.block_size,
            form.soft_cap is not None,
        )
        plan = self._plans.plan(
            HeadGroup(kv_heads, form.window, sharing, head_dim, tile_rows(head_dim))
        )

        def launch(
            of: Build, name: str, grid: int, block: int, shared_bytes: int, *arrays: str
        ) -> Launch:
            kernel = self._library.kernel(of, name)
            arguments = np.zeros(1, kernel.arguments)
            for array in arrays:
                arguments[array] = plan.arrays[array]
            arguments["partial_output"] = address(plan.partial_output)
            arguments["partial_lse"] = address(plan.partial_lse)
            return Launch(kernel, grid, block, arguments, shared_bytes)

        prefix = merge = None
        decode = launch(
            build,
            "decode_attention",
            plan.grid,
            _THREADS,
            decode_shared_bytes(build),
            *("work", "partials", "num_work", "tokens"),
        )
        if plan.prefix_grid:
            prefix = launch(
                cascade_build(build),
                "attend_shared_prefix",
                plan.prefix_grid,
                _THREADS,
                tile_shared_bytes(head_dim, kv.blocks.dtype),
                *("prefix_work", "num_prefix_work", "ranges", "first_members", "members"),
                *("tokens", "first"),
            )
            prefix.arguments["kv_heads"] = kv_heads
        for each in (decode, *((prefix,) if prefix else ())):
            each.arguments["block_tables"] = address(self._rows.block_tables)
            each.arguments["table_stride"] = self._rows.block_tables.stride(0)
        if plan.merges:
            grid = len(self._rows.lengths) * heads
            merge = launch(build, "merge_partials", grid, head_dim, 0, "first", "count", "tokens")
            merge.arguments["heads"] = heads
        return _Launches(prefix, decode, merge)


@dataclass(frozen=True, slots=True)
class _Launches:
    """What layers of one kind launch, in this order."""

    prefix: Launch | None
    decode: Launch
    merge: Launch | None
