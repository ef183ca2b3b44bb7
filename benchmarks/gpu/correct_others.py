"""Every other kernel against its twin in float64, or to the byte where it only moves bytes."""

from dataclasses import replace

import torch
from cases import BLOCK_SIZE
from child import Context

from blockyard.cuda import cache_write as by_kernel
from blockyard.cuda import reference_cache, reference_sampling
from blockyard.cuda.backend import LayerKV
from blockyard.cuda.block_copy import BlockMover, copy_blocks
from blockyard.cuda.fused_layers import KernelLayers
from blockyard.cuda.logprobs import score_tokens
from blockyard.cuda.penalties import RowPenalties, penalise
from blockyard.cuda.reference_layers import ReferenceLayers
from blockyard.cuda.sampling import RowSampling, choose_tokens

__all__ = ["blocks", "cache_write", "layers", "sampling", "scores"]

ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
NEAR = 1e-4
"""Scores this close to the best one are as good: the kernel's noise is float32."""


def cache_write(context: Context) -> None:
    """Keys and values rotated, quantised and stored."""
    device = context.device.torch_device
    random = torch.Generator().manual_seed(1)
    for heads, dtype, kv_dtype in context.sizes.correct:
        tokens, blocks = 37, 5
        width = (heads.heads + 2 * heads.kv_heads) * heads.dim
        projected = torch.randn(tokens, width, generator=random).to(dtype)
        angles = torch.rand(tokens, heads.dim // 2, generator=random) * 6.3
        slots = torch.randperm(blocks * BLOCK_SIZE, generator=random)[:tokens]
        scales = torch.rand(2, heads.kv_heads, generator=random) * 0.02 + 0.005
        shape = (blocks, 2, heads.kv_heads, BLOCK_SIZE, heads.dim)
        pools = [
            LayerKV(torch.zeros(shape).to(kv_dtype), scales if kv_dtype.itemsize == 1 else None)
            for _ in range(2)
        ]
        ours = LayerKV(
            pools[0].blocks.to(device), None if pools[0].scales is None else scales.to(device)
        )
        queries = by_kernel.rotate_and_write(
            context.device.library,
            ours,
            projected.to(device),
            angles.cos().to(device),
            angles.sin().to(device),
            heads.heads,
            slots.to(device),
            BLOCK_SIZE,
        )
        twin = reference_cache.rotate_and_write(
            pools[1], projected, angles.cos(), angles.sin(), heads.heads, slots, BLOCK_SIZE
        )
        worst = float((queries.cpu().double() - twin.double()).abs().max())
        stored = ours.blocks.cpu().float(), pools[1].blocks.float()
        off = (stored[0] - stored[1]).abs()
        # One step where the last bit of a turned number tips the rounding.
        step = 0.126 if kv_dtype.itemsize == 1 else 2 * ROUNDING[dtype]
        fits = bool((off <= step * stored[1].abs() + 0.003).all())
        values = [
            pool.blocks[:, 1].cpu().contiguous().view(torch.uint8) for pool in (ours, pools[1])
        ]
        context.row(
            heads=str(heads),
            kv_dtype=str(kv_dtype).removeprefix("torch."),
            worst=worst,
            correct=fits and bool(torch.equal(*values)) and worst <= 4 * 2 * ROUNDING[dtype],
        )


def layers(context: Context) -> None:
    """RMSNorm with a residual, and gated activations."""
    device = context.device.torch_device
    kernels, twin = KernelLayers(context.device.library), ReferenceLayers()
    random = torch.Generator().manual_seed(2)
    for dtype, width in ((torch.bfloat16, 64), (torch.bfloat16, 4096), (torch.float16, 1032)):
        hidden, residual = torch.randn(2, 37, width, generator=random).to(dtype)
        weight = torch.randn(width, generator=random).to(dtype)
        normed, sums = kernels.add_rms_norm(
            hidden.to(device), residual.to(device), weight.to(device), 1e-6
        )
        expected = twin.rms_norm((hidden + residual).double(), weight, 1e-6)
        both = torch.randn(37, 2 * width, generator=random).to(dtype)
        results = {
            "add_rms_norm": (normed, expected),
            "silu_and_multiply": (
                kernels.silu_and_multiply(both.to(device)),
                twin.silu_and_multiply(both.double()),
            ),
            "gelu_and_multiply": (
                kernels.gelu_and_multiply(both.to(device)),
                twin.gelu_and_multiply(both.double()),
            ),
        }
        for kernel, (found, wanted) in results.items():
            off = (found.cpu().double() - wanted).abs()
            # Approximate instructions cost a little beside the one rounding.
            fits = bool((off <= 1.1 * ROUNDING[dtype] * wanted.abs() + 1e-5).all())
            same = kernel != "add_rms_norm" or bool(torch.equal(sums.cpu(), hidden + residual))
            context.row(
                kernel=kernel,
                dtype=str(dtype).removeprefix("torch."),
                width=width,
                worst=float(off.max()),
                correct=fits and same,
            )


def sampling(context: Context) -> None:
    """Tokens of every way of choosing, and of equal scores."""
    device = context.device.torch_device
    count, vocabulary = context.sizes.logits
    kinds = (
        RowSampling(),
        RowSampling(1.0, seed=1),
        RowSampling(0.7, top_k=40, seed=2),
        RowSampling(1.0, top_p=0.9, seed=3, position=9),
        RowSampling(0.6, min_p=0.05, seed=2**63 + 4, choice=3),
        RowSampling(0.8, top_k=20, top_p=0.8, min_p=0.02, seed=5),
    )
    rows = [replace(kinds[n % len(kinds)], seed=n * 2**40 + 7) for n in range(min(count, 24))]
    random = torch.Generator().manual_seed(3)
    for dtype in (torch.float32, torch.bfloat16):
        logits = (torch.randn(len(rows), vocabulary, generator=random) * 3).to(dtype)
        found = choose_tokens(context.device.library, logits.to(device), rows)
        tokens, scores, failed = found.tokens.tolist(), found.scores.tolist(), found.failed.tolist()
        worst = 0.0
        for row, values, token, score in zip(rows, logits, tokens, scores, strict=True):
            wanted = reference_sampling.gumbel_scores(values.double(), row)
            best = float(wanted.max())
            off = max(best - float(wanted[token]), abs(score - float(wanted[token])))
            worst = max(worst, off / (1 + 1e-2 * abs(best)))
        context.row(
            dtype=str(dtype).removeprefix("torch."),
            vocabulary=vocabulary,
            rows=len(rows),
            worst=worst,
            allowed=NEAR,
            correct=worst <= NEAR and not any(failed),
        )


def scores(context: Context) -> None:
    """Penalties, log probabilities and the likeliest tokens."""
    device = context.device.torch_device
    vocabulary = context.sizes.logits[1]
    random = torch.Generator().manual_seed(4)
    before = torch.randn(4, vocabulary, generator=random) * 3
    produced = torch.randint(-3, 4, (2, vocabulary), generator=random).clamp(min=0).float()
    in_prompt = torch.rand(2, vocabulary, generator=random) < 0.3

    def penalties(place: torch.device) -> list[RowPenalties]:
        numbers = ((3, 1.3, 0.5, -0.25), (0, 0.8, 0.0, 2.0))
        return [
            RowPenalties(*each, in_prompt[n].to(place), produced[n].to(place))
            for n, each in enumerate(numbers)
        ]

    found, expected = before.to(device), before.double()
    penalise(context.device.library, found, penalties(device))
    reference_sampling.penalise(expected, penalties(torch.device("cpu")))
    worst = float((found.cpu().double() - expected).abs().max())
    context.row(kernel="penalise_rows", worst=worst, correct=worst <= 1e-5)

    asked = ([0, 3, 1, 1], [vocabulary - 1, 0, 7, vocabulary // 2], [20, 0, 1, 5])
    for dtype in (torch.float32, torch.bfloat16):
        logits = before.to(dtype)
        ours = score_tokens(context.device.library, logits.to(device), *asked)
        twin = reference_sampling.score_tokens(logits, *asked)
        worst, same = 0.0, True
        for n, top in enumerate(asked[2]):
            told = slice(0, 1 + top)
            off = (ours.logprobs[n, told].cpu() - twin.logprobs[n, told]).abs().max()
            worst = max(worst, float(off))
            same &= bool(torch.equal(ours.ids[n, told].cpu(), twin.ids[n, told]))
        context.row(
            kernel="score_tokens",
            dtype=str(dtype).removeprefix("torch."),
            worst=worst,
            correct=same and worst <= 1e-4,
        )


def blocks(context: Context) -> None:
    """Blocks copied, swapped out and swapped in, to the byte."""
    device = context.device.torch_device
    for shape in ((4104,), (2, 2, 3, 16, 80)):
        count = torch.Size(shape).numel()
        pool = torch.arange(9 * count).remainder(30011).to(torch.int16).view(9, *shape)
        ours, expected = pool.to(device), pool.clone()
        expected[8], expected[3], expected[1] = pool[0], pool[0], pool[5]
        copy_blocks(context.device.library, ours, ours, [(0, 8), (0, 3), (5, 1)])
        correct = bool(torch.equal(ours.cpu(), expected))
        host = context.device.pinned(7, *shape, dtype=torch.int16)
        host.zero_()
        mover = BlockMover(context.device.library, ours, host, staging_blocks=3)
        mover.swap_out([(8, 0), (2, 1), (4, 2), (6, 3), (7, 6)])
        mover.swap_in([(0, 0), (3, 5), (6, 4)])
        context.device.settle()
        after = expected.clone()
        after[0], after[5], after[4] = expected[8], expected[6], expected[7]
        correct &= bool(torch.equal(ours.cpu(), after))
        correct &= bool(torch.equal(host[2], expected[4]))
        context.row(block=list(shape), correct=correct)
