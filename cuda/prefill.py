"""Prefill attention by kernel: requests that compute several tokens, all in one launch.

Plans once for the layers of a step that see the same positions, then launches one kernel a layer,
and a second where tiles were cut. The torch twin is `ReferenceStep.attend`. Units: tokens, bytes.
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
from blockyard.cuda.sources import Build
from blockyard.cuda.tile_plan import TilePlan, plan_tiles
from blockyard.cuda.upload import Upload

__all__ = [
    "PrefillAttention",
    "PrefillRows",
    "prefill_build",
    "serves_warpgroups",
    "tile_rows",
    "tile_shared_bytes",
]

_THREADS = 128
_ALL = 1 << 30
"""A window no position is outside of."""


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """The requests of a step that compute several tokens; all but the tables on the host.

    Attributes:
        counts: `[requests]`, tokens computed in the step.
        lengths: `[requests]`, tokens in the cache after it.
        first_tokens: `[requests]`, index of each one's first token in the step.
        block_tables: int32 `[requests, widest]` on the device.
        block_size: token slots in a block.
    """

    counts: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    first_tokens: npt.NDArray[np.int32]
    block_tables: torch.Tensor
    block_size: int


def prefill_build(
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    head_dim: int,
    sharing: int,
    block_size: int,
    soft_cap: bool,
    warpgroups: bool = False,
) -> Build:
    """The build of the prefill kernel for one shape; `sharing` query heads read one KV head.

    With `warpgroups` by Hopper's own instructions, for shapes of `serves_warpgroups`.
    """
    fits_twice = 2 * tile_shared_bytes(head_dim, kv_dtype) <= MULTIPROCESSOR_BYTES
    build = Build.of(
        "prefill.cu",
        **attention_defines(dtype, kv_dtype, head_dim, block_size),
        GROUP=sharing,
        SOFT_CAP=soft_cap,
        MIN_BLOCKS=2 if fits_twice else 1,
    )
    if not warpgroups:
        return build
    # Twice the threads: registers for two thread blocks are there for narrow heads alone.
    return build.with_defines(WGMMA=1, MIN_BLOCKS=2 if head_dim <= 64 else 1)


def serves_warpgroups(dtype: torch.dtype, kv_dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the kernel has a build by warpgroup instructions for this shape."""
    return kv_dtype is dtype and head_dim in (64, 128)


def tile_rows(head_dim: int) -> int:
    """Rows of a tile, as `tile.cuh` has them."""
    return 128 if head_dim <= 128 else 64


def tile_shared_bytes(head_dim: int, kv_dtype: torch.dtype) -> int:
    """Dynamic shared memory of a tile: its queries, and two tiles of 64 keys and values."""
    queries = tile_rows(head_dim) * padded_row_bytes(head_dim, torch.float16)
    return queries + 2 * 2 * 64 * padded_row_bytes(head_dim, kv_dtype)


class PrefillAttention:
    """Prefill attention of one step.

    Args:
        library: where kernels come from.
        rows: whose tokens.
        slots: thread blocks that run at once.
        device: of all tensors.
        warpgroups: whether to use Hopper's own instructions where a build has them.
    """

    def __init__(
        self,
        library: KernelLibrary,
        rows: PrefillRows,
        slots: int,
        device: torch.device,
        warpgroups: bool = False,
    ) -> None:
        self._library = library
        self._warpgroups = warpgroups
        self._rows = rows
        self._slots = slots
        self._device = device
        self._plans: dict[tuple[int, int | None], _UploadedPlan] = {}
        self._launches: dict[tuple[object, ...], tuple[Launch, Launch | None]] = {}

    def attend(
        self, kv: LayerKV, queries: torch.Tensor, form: AttentionForm, output: torch.Tensor
    ) -> None:
        """Write the attention of the step's prefill rows to their rows of `output`.

        `queries` and `output` are `[tokens, heads, head_dim]`, contiguous but for the tokens.
        """
        key = layer_key(kv, queries, form)
        launches = self._launches.get(key)
        if launches is None:
            launches = self._launches[key] = self._prepare(kv, queries, form)
        prefill, merge = launches
        set_layer(prefill.arguments, kv, queries, form)
        set_output(prefill.arguments, form, output)
        prefill.run()
        if merge is not None:
            set_output(merge.arguments, form, output)
            merge.run()

    def _prepare(
        self, kv: LayerKV, queries: torch.Tensor, form: AttentionForm
    ) -> tuple[Launch, Launch | None]:
        rows = self._rows
        heads, head_dim = queries.shape[1:]
        kv_heads = kv.blocks.shape[2]
        sharing = heads // kv_heads
        warpgroups = self._warpgroups and serves_warpgroups(
            queries.dtype, kv.blocks.dtype, head_dim
        )
        build = prefill_build(
            queries.dtype,
            kv.blocks.dtype,
            head_dim,
            sharing,
            rows.block_size,
            form.soft_cap is not None,
            warpgroups,
        )
        plan = self._plan(kv_heads, sharing, head_dim, form.window)

        def launch(name: str, grid: int, block: int, shared_bytes: int, *arrays: str) -> Launch:
            kernel = self._library.kernel(build, name)
            arguments = np.zeros(1, kernel.arguments)
            for array in arrays:
                arguments[array] = plan.upload[array]
            arguments["partial_output"] = address(plan.partial_output)
            arguments["partial_lse"] = address(plan.partial_lse)
            return Launch(kernel, grid, block, arguments, shared_bytes)

        shared_bytes = tile_shared_bytes(head_dim, kv.blocks.dtype)
        prefill = launch(
            "prefill_attention",
            plan.num_items,
            2 * _THREADS if warpgroups else _THREADS,
            shared_bytes,
            *("work", "ranges", "first_tokens", "counts", "starts"),
        )
        prefill.arguments["block_tables"] = address(rows.block_tables)
        prefill.arguments["table_stride"] = rows.block_tables.stride(0)
        prefill.arguments["window"] = _ALL if form.window is None else form.window
        if not plan.num_tiles:
            return prefill, None
        names = ("tiles", "num_partials", "first_tokens", "counts")
        grid = plan.num_tiles * tile_rows(head_dim)
        return prefill, launch("merge_tiles", grid, head_dim, 0, *names)

    def _plan(
        self, kv_heads: int, sharing: int, head_dim: int, window: int | None
    ) -> "_UploadedPlan":
        found = self._plans.get((kv_heads, window))
        if found is None:
            rows = self._rows
            plan = plan_tiles(
                rows.counts,
                rows.lengths,
                window,
                kv_heads,
                sharing,
                tile_rows(head_dim),
                self._slots,
            )
            found = _UploadedPlan(plan, rows, head_dim, self._device)
            self._plans[kv_heads, window] = found
        return found


class _UploadedPlan:
    """A tile plan on the device, and room for its partial results."""

    def __init__(
        self, plan: TilePlan, rows: PrefillRows, head_dim: int, device: torch.device
    ) -> None:
        self.num_items = len(plan.work)
        self.num_tiles = len(plan.tiles)
        self.upload = Upload(
            device,
            work=plan.work,
            ranges=plan.ranges,
            tiles=plan.tiles,
            num_partials=plan.num_partials_of,
            first_tokens=rows.first_tokens,
            counts=rows.counts,
            starts=rows.lengths - rows.counts,
        )
        shape = (plan.num_partials, tile_rows(head_dim))
        self.partial_output = torch.empty(*shape, head_dim, dtype=torch.float32, device=device)
        self.partial_lse = torch.empty(*shape, dtype=torch.float32, device=device)
