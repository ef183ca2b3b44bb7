"""Decode attention by kernel: one query token a request.

Blocks that many requests begin with are read once for all of them. Plans once for the layers of a
step that see the same positions, then launches up to three kernels a layer. The torch twin is
`ReferenceStep.attend`. Units: tokens, bytes.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
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
from blockyard.cuda.launch import KernelLibrary, Launch, address
from blockyard.cuda.prefill import tile_rows, tile_shared_bytes
from blockyard.cuda.shared_prefix import PrefixPlan, find_shared_prefixes, plan_prefixes
from blockyard.cuda.sources import Build
from blockyard.cuda.upload import Upload
from blockyard.cuda.work_list import WorkList, plan_decode

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


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The requests of a step that compute one token.

    Attributes:
        lengths: `[requests]`, tokens in the cache; on the host.
        tokens: `[requests]`, index of each one's token in the step; on the host.
        block_tables: int32 `[requests, widest]` on the device.
        block_size: token slots in a block.
        host_tables: `block_tables` on the host, to find what requests share; None means not to.
    """

    lengths: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    block_tables: torch.Tensor
    block_size: int
    host_tables: npt.NDArray[np.int32] | None = None


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
    """

    def __init__(
        self, library: KernelLibrary, rows: DecodeRows, slots: int, device: torch.device
    ) -> None:
        self._library = library
        self._rows = rows
        self._slots = slots
        self._device = device
        self._plans: dict[tuple[int, int | None], _UploadedPlan] = {}
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
        plan = self._plan(kv_heads, form.window, sharing, head_dim)

        def launch(
            of: Build, name: str, grid: int, block: int, shared_bytes: int, *arrays: str
        ) -> Launch:
            kernel = self._library.kernel(of, name)
            arguments = np.zeros(1, kernel.arguments)
            for array in arrays:
                arguments[array] = plan.upload[array]
            arguments["partial_output"] = address(plan.partial_output)
            arguments["partial_lse"] = address(plan.partial_lse)
            return Launch(kernel, grid, block, arguments, shared_bytes)

        prefix = merge = None
        decode = launch(
            build,
            "decode_attention",
            plan.num_items,
            _THREADS,
            decode_shared_bytes(build),
            *("work", "partials", "num_work", "tokens"),
        )
        if plan.num_prefix_items:
            prefix = launch(
                cascade_build(build),
                "attend_shared_prefix",
                plan.num_prefix_items,
                _THREADS,
                tile_shared_bytes(head_dim, kv.blocks.dtype),
                *("prefix_work", "ranges", "first_members", "members", "tokens", "first"),
            )
            prefix.arguments["kv_heads"] = kv_heads
        for each in (decode, *((prefix,) if prefix else ())):
            each.arguments["block_tables"] = address(self._rows.block_tables)
            each.arguments["table_stride"] = self._rows.block_tables.stride(0)
        if plan.num_partials:
            grid = len(self._rows.lengths) * heads
            merge = launch(build, "merge_partials", grid, head_dim, 0, "first", "count", "tokens")
            merge.arguments["heads"] = heads
        return _Launches(prefix, decode, merge)

    def _plan(
        self, kv_heads: int, window: int | None, sharing: int, head_dim: int
    ) -> "_UploadedPlan":
        found = self._plans.get((kv_heads, window))
        if found is not None:
            return found
        rows = self._rows
        prefixes: PrefixPlan | None = None
        starts = reserved = None
        if window is not None:
            starts = np.maximum(rows.lengths - window, 0)
        elif rows.host_tables is not None:
            groups = find_shared_prefixes(rows.host_tables, rows.lengths, rows.block_size)
            if groups:
                prefixes = plan_prefixes(
                    groups, len(rows.lengths), kv_heads, sharing, tile_rows(head_dim), self._slots
                )
                starts, reserved = prefixes.starts, prefixes.pieces
        work = plan_decode(rows.lengths, kv_heads, self._slots, starts, reserved)
        found = _UploadedPlan(work, prefixes, rows.tokens, sharing, head_dim, self._device)
        self._plans[kv_heads, window] = found
        return found


@dataclass(frozen=True, slots=True)
class _Launches:
    """What layers of one kind launch, in this order."""

    prefix: Launch | None
    decode: Launch
    merge: Launch | None


class _UploadedPlan:
    """A work list on the device, and room for its partial results."""

    def __init__(
        self,
        plan: WorkList,
        prefixes: PrefixPlan | None,
        tokens: npt.NDArray[np.int32],
        sharing: int,
        head_dim: int,
        device: torch.device,
    ) -> None:
        self.num_items = len(plan.work)
        self.num_partials = plan.num_partials
        self.num_prefix_items = 0 if prefixes is None else len(prefixes.work)
        arrays = {
            "work": plan.work,
            "partials": plan.partials,
            "first": plan.first,
            "count": plan.count,
            "tokens": tokens,
            "num_work": np.array([self.num_items], dtype=np.int32),
        }
        if prefixes is not None:
            arrays["prefix_work"] = prefixes.work
            arrays["ranges"] = prefixes.ranges
            arrays["first_members"] = prefixes.first_members
            arrays["members"] = prefixes.members
        self.upload = Upload(device, **arrays)
        shape = (self.num_partials, sharing)
        self.partial_output = torch.empty(*shape, head_dim, dtype=torch.float32, device=device)
        self.partial_lse = torch.empty(*shape, dtype=torch.float32, device=device)
