"""How fast attention is, beside torch's own and beside what memory allows."""

from itertools import product
from typing import Any

import torch
from cases import BLOCK_SIZE, Arena, Paged, timed_case
from child import Context
from rivals import sdpa_decode, sdpa_prefill
from sizes import Heads

from blockyard.cuda.decode import DecodeAttention, DecodeRows
from blockyard.cuda.prefill import PrefillAttention, PrefillRows

__all__ = [
    "decode",
    "decode_bytes",
    "make_arena",
    "pool_layout",
    "prefill",
    "prefill_by_warpgroups",
    "share_of_ceiling",
]

_MOST_LAYERS = 32
_BF16, _FP8 = torch.bfloat16, torch.float8_e4m3fn


def make_arena(context: Context) -> Arena:
    """As much memory as is wanted, or as there is."""
    free = int(context.device.free_bytes() * 0.55)
    return Arena(context.device.torch_device, min(context.sizes.arena_bytes, free))


def decode_bytes(heads: Heads, tokens: int, kv_dtype: torch.dtype) -> int:
    """Bytes of keys and values that must be read."""
    return 2 * tokens * heads.kv_heads * heads.dim * kv_dtype.itemsize


def share_of_ceiling(context: Context, tb_per_s: float) -> dict[str, float]:
    """Of the plain copy's rate, where that has been measured."""
    ceiling = [row["tb_per_s"] for row in context.rows("copy ceiling") if "tb_per_s" in row]
    return {"share_of_copy": round(tb_per_s / ceiling[0], 4)} if ceiling else {}


def decode(context: Context) -> None:
    """One token a request, by batch, context, heads and KV dtype."""
    arena = make_arena(context)
    cases = list(product(context.sizes.decode_heads, (_BF16, _FP8), context.sizes.decode))
    for number, (heads, kv_dtype, (batch, length)) in enumerate(cases):
        if context.out_of_time(len(cases) - number):
            return
        size = decode_bytes(heads, batch * length, kv_dtype)
        # The arena holds fp8 as half as many bytes.
        room = arena.size if kv_dtype is _BF16 else arena.size // 2
        row: dict[str, Any] = {
            "heads": str(heads),
            "kv_dtype": str(kv_dtype).removeprefix("torch."),
            "batch": batch,
            "context": length,
            "kv_bytes": size,
        }
        if size > room:
            context.row(**row, skipped=f"{size} bytes of keys and values, room for {room}")
            continue
        layers = max(1, min(_MOST_LAYERS, room // size, -(-context.sizes.fresh_bytes // size)))
        case = timed_case(
            context.device.torch_device,
            arena,
            heads,
            [length] * batch,
            [1] * batch,
            kv_dtype,
            layers,
        )
        row |= _time_decode(context, case, size) | {"layers": layers}
        if kv_dtype is _BF16:
            row |= sdpa_decode(context, arena, heads, batch, length, layers)
        context.row(**row)


def pool_layout(context: Context) -> None:
    """One layer of a pool of few layers and of many: what blocks far apart cost."""
    arena = make_arena(context)
    for heads, (batch, length, layers) in product(
        context.sizes.decode_heads[:1], context.sizes.layouts
    ):
        if context.out_of_time(1):
            return
        size = decode_bytes(heads, batch * length, _BF16)
        if size * layers > arena.size:
            context.row(layers=layers, skipped=f"a pool of {size * layers} bytes")
            continue
        case = timed_case(
            context.device.torch_device, arena, heads, [length] * batch, [1] * batch, _BF16, layers
        )
        only = Paged(
            case.batch, case.layers[layers // 2 : layers // 2 + 1], case.queries, case.form
        )
        context.row(batch=batch, context=length, layers=layers, **_time_decode(context, only, size))


def prefill(context: Context) -> None:
    """Prompts and chunks, by how many floating-point operations a second they compute."""
    _prefill(context, (_BF16, _FP8), warpgroups=False)


def prefill_by_warpgroups(context: Context) -> None:
    """The same by Hopper's own instructions."""
    if context.device.warpgroups:
        _prefill(context, (_BF16,), warpgroups=True)
    else:
        context.row(skipped="this card has no such instructions")


def _prefill(context: Context, kv_dtypes: tuple[torch.dtype, ...], *, warpgroups: bool) -> None:
    device = context.device
    arena = make_arena(context)
    cases = list(product(context.sizes.decode_heads, kv_dtypes, context.sizes.prefill))
    for number, (heads, kv_dtype, (name, counts, lengths)) in enumerate(cases):
        if context.out_of_time(len(cases) - number):
            return
        case = timed_case(device.torch_device, arena, heads, lengths, counts, kv_dtype)
        rows = PrefillRows(
            case.batch.counts,
            case.batch.lengths,
            case.first_tokens,
            case.batch.block_tables,
            BLOCK_SIZE,
        )
        step = PrefillAttention(device.library, rows, device.slots, device.torch_device, warpgroups)
        output = torch.empty_like(case.queries)

        layer = (case.layers[0], case.queries, case.form, output)
        timing = device.time(lambda: step.attend(*layer))  # noqa: B023 (called before the loop goes on)
        operations = _operations(heads, counts, lengths)
        row = {
            "heads": str(heads),
            "kv_dtype": str(kv_dtype).removeprefix("torch."),
            "case": name,
            **timing.row(),
            "tflop_per_s": operations / timing.seconds / 1e12,
        }
        # The other prefill part has had its rivals, unless it has not come so far.
        rivals = kv_dtype is _BF16 and not (warpgroups and context.rows("prefill"))
        if rivals and counts == lengths and len(set(counts)) == 1:
            row |= sdpa_prefill(context, heads, len(counts), counts[0])
            row |= {
                key.replace("_us", "_tflop_per_s"): operations / value / 1e6
                for key, value in row.items()
                if key.startswith("sdpa_") and isinstance(value, float)
            }
        context.row(**row)


def _time_decode(context: Context, case: Paged, size: int) -> dict[str, Any]:
    """Time of one layer, each layer of the case in turn."""
    device = context.device
    rows = DecodeRows(case.batch.lengths, case.first_tokens, case.batch.block_tables, BLOCK_SIZE)
    step = DecodeAttention(device.library, rows, device.slots, device.torch_device)
    output = torch.empty_like(case.queries)

    def run() -> None:
        for kv in case.layers:
            step.attend(kv, case.queries, case.form, output)

    timing = device.time(run, len(case.layers))
    rate = size / timing.seconds / 1e12
    return {**timing.row(), "tb_per_s": rate, **share_of_ceiling(context, rate)}


def _operations(heads: Heads, counts: tuple[int, ...], lengths: tuple[int, ...]) -> int:
    """Multiplications and additions of both products, of visible positions alone."""
    pairs = sum(
        count * (length - count) + count * (count + 1) // 2
        for count, length in zip(counts, lengths, strict=True)
    )
    return 4 * heads.heads * heads.dim * pairs
