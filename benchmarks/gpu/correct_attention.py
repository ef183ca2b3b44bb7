"""Attention by kernel against float64, over requests of awkward lengths and poisoned slots."""

from collections.abc import Iterator

import torch
from cases import BLOCK_SIZE, Paged, checked_case
from child import Context
from sizes import Heads

from blockyard.cuda.backend import AttentionForm
from blockyard.cuda.decode import DecodeAttention, DecodeRows
from blockyard.cuda.prefill import PrefillAttention, PrefillRows, serves_warpgroups

__all__ = ["decode", "prefill", "prefill_by_warpgroups", "shared_prefix"]

ALLOWED = {torch.bfloat16: 1.6e-2, torch.float16: 4e-3}
"""What rounding of weights and output may cost, for values of about 1."""


def decode(context: Context) -> None:
    """One token a request."""
    device = context.device
    for heads, dtype, kv_dtype in context.sizes.correct:
        for name, form in _forms(heads, device.torch_device):
            if context.out_of_time(1):
                return
            case = checked_case(
                device.torch_device,
                heads,
                context.sizes.lengths,
                dtype=dtype,
                kv_dtype=kv_dtype,
                form=form,
            )
            output = _attend_decode(context, case, shared=False)
            _row(context, heads, dtype, kv_dtype, name, case.worst(output))


def prefill(context: Context) -> None:
    """Several tokens a request."""
    _prefill(context, warpgroups=False)


def prefill_by_warpgroups(context: Context) -> None:
    """The same by Hopper's own instructions, for the shapes that have such a build."""
    if context.device.warpgroups:
        _prefill(context, warpgroups=True)
    else:
        context.row(skipped="this card has no such instructions")


def _prefill(context: Context, *, warpgroups: bool) -> None:
    device = context.device
    counts, lengths = zip(*context.sizes.chunks, strict=True)
    for heads, dtype, kv_dtype in context.sizes.correct:
        for name, form in _forms(heads, device.torch_device):
            if warpgroups and not serves_warpgroups(dtype, kv_dtype, heads.dim):
                continue
            if context.out_of_time(1):
                return
            case = checked_case(
                device.torch_device,
                heads,
                lengths,
                counts,
                dtype=dtype,
                kv_dtype=kv_dtype,
                form=form,
            )
            rows = PrefillRows(
                case.batch.counts,
                case.batch.lengths,
                case.first_tokens,
                case.batch.block_tables,
                BLOCK_SIZE,
            )
            output = torch.full_like(case.queries, float("nan"))
            step = PrefillAttention(
                device.library, rows, device.slots, device.torch_device, warpgroups
            )
            step.attend(case.layers[0], case.queries, form, output)
            _row(context, heads, dtype, kv_dtype, name, case.worst(output))


def shared_prefix(context: Context) -> None:
    """Requests that begin with the same blocks, and one that does not."""
    device = context.device
    for heads, dtype, kv_dtype in context.sizes.correct:
        if context.out_of_time(1):
            return
        # 17 requests save 4096 tokens that 16 of them need not read again.
        case = checked_case(
            device.torch_device,
            heads,
            [260, 259, 270] + [257] * 14,
            dtype=dtype,
            kv_dtype=kv_dtype,
            shared_blocks=16,
        )
        output = _attend_decode(context, case, shared=True)
        _row(context, heads, dtype, kv_dtype, "16 shared blocks", case.worst(output))


def _attend_decode(context: Context, case: Paged, *, shared: bool) -> torch.Tensor:
    rows = DecodeRows(
        case.batch.lengths,
        case.first_tokens,
        case.batch.block_tables,
        BLOCK_SIZE,
        case.batch.host_tables if shared else None,
    )
    output = torch.full_like(case.queries, float("nan"))
    device = context.device
    step = DecodeAttention(device.library, rows, device.slots, device.torch_device)
    step.attend(case.layers[0], case.queries, case.form, output)
    return output


def _forms(heads: Heads, device: torch.device) -> Iterator[tuple[str, AttentionForm]]:
    scale = heads.dim**-0.5
    yield "plain", AttentionForm(scale)
    sinks = torch.linspace(-2, 3, heads.heads, device=device)
    yield "window 40, sinks", AttentionForm(scale, window=40, sinks=sinks)
    if heads.dim >= 128:
        yield "soft cap 3", AttentionForm(scale, soft_cap=3.0)


def _row(
    context: Context,
    heads: Heads,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    form: str,
    worst: float,
) -> None:
    context.row(
        heads=str(heads),
        dtype=str(dtype).removeprefix("torch."),
        kv_dtype=str(kv_dtype).removeprefix("torch."),
        form=form,
        worst=worst,
        allowed=ALLOWED[dtype],
        correct=worst <= ALLOWED[dtype],
    )
