"""How fast memory is, what a launch costs, and how fast blocks leave the card and come back."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import torch
from cases import BLOCK_SIZE, checked_case
from child import Context
from sizes import Heads

from blockyard.cuda.block_copy import BlockMover
from blockyard.cuda.decode import DecodeAttention, DecodeRows
from blockyard.cuda.fused_layers import layers_build
from blockyard.cuda.launch import Launch

__all__ = ["copy_ceiling", "launch", "swap"]

Moves = Sequence[tuple[int, int]]

_LAUNCHES = 2000
_REHEARSED_LAUNCHES = 5
_TINY_KERNELS = 100


def copy_ceiling(context: Context) -> None:
    """Bytes read and written a second by torch's own copy: what attention is held against."""
    size = min(context.sizes.copy_bytes, context.device.free_bytes() // 4)
    source = torch.ones(size, dtype=torch.uint8, device=context.device.torch_device)
    target = torch.empty_like(source)
    timing = context.device.time(lambda: target.copy_(source))
    context.row(bytes=size, tb_per_s=2 * size / timing.seconds / 1e12, **timing.row())


def launch(context: Context) -> None:
    """What the host pays for one launch, a graph for one small kernel, and a step for its plan."""
    device = context.device
    build = layers_build(torch.bfloat16, torch.bfloat16, 64)
    kernel = device.library.kernel(build, "rms_norm")
    rows = torch.ones(8, 64, dtype=torch.bfloat16, device=device.torch_device)
    output = torch.empty_like(rows)
    arguments = np.zeros(1, kernel.arguments)
    arguments["rows"] = arguments["weight"] = rows.data_ptr()
    arguments["output"] = output.data_ptr()
    arguments["outer_stride"] = arguments["width"] = 64
    arguments["inner"], arguments["num_rows"] = 1, 8
    tiny = Launch(kernel, 1, 256, arguments, 32)
    count = _REHEARSED_LAUNCHES if device.emulated else _LAUNCHES
    context.row(what="launch, by the host", **device.wall(tiny.run, count).row())

    def many() -> None:
        for _ in range(_TINY_KERNELS):
            tiny.run()

    context.row(what="small kernel in a graph", **device.time(many, _TINY_KERNELS).row())
    case = checked_case(device.torch_device, Heads(8, 2, 64), [40] * 64)

    def plan() -> DecodeAttention:
        decode = DecodeRows(
            case.batch.lengths, case.first_tokens, case.batch.block_tables, BLOCK_SIZE
        )
        step = DecodeAttention(device.library, decode, device.slots, device.torch_device)
        step.attend(case.layers[0], case.queries, case.form, case.queries.clone())
        return step

    context.row(what="plan and first layer of 64 requests", **device.wall(plan).row())
    step = plan()
    into = case.queries.clone()
    timing = device.wall(
        lambda: step.attend(case.layers[0], case.queries, case.form, into),
        1 if device.emulated else 200,
    )
    context.row(what="another layer of 64 requests", **timing.row())


def swap(context: Context) -> None:
    """Blocks out and in, wherever they lie, beside one plain copy of as many bytes."""
    for block_bytes, count in context.sizes.swaps:
        if context.out_of_time(1):
            return
        _swap(context, block_bytes, count)


def _swap(context: Context, block_bytes: int, count: int) -> None:
    device = context.device
    pool = torch.zeros(count * 2, block_bytes, dtype=torch.uint8, device=device.torch_device)
    host = device.pinned(count * 2, block_bytes, dtype=torch.uint8)
    host.zero_()
    mover = BlockMover(device.library, pool, host)

    def row(blocks: str, out: Callable[[], object], into: Callable[[], object]) -> None:
        rates = {
            name: count * block_bytes / device.wall(run).seconds / 1e9
            for name, run in (("out_gb_per_s", out), ("in_gb_per_s", into))
        }
        context.row(blocks=blocks, block_bytes=block_bytes, count=count, **rates)

    def moved(blocks: str, moves: Moves) -> None:
        back = [(target, source) for source, target in moves]
        row(blocks, lambda: mover.swap_out(moves), lambda: mover.swap_in(back))

    chance = random.Random(1)
    anywhere = [chance.sample(range(count * 2), count) for _ in range(2)]
    moved("adjacent", [(block, block) for block in range(count)])
    # As the engine gives them: host blocks in order, device blocks anywhere.
    moved("device anywhere", list(zip(anywhere[0], range(count), strict=True)))
    moved("both anywhere", list(zip(*anywhere, strict=True)))
    row(
        "plain pinned copy",
        lambda: host[:count].copy_(pool[:count], non_blocking=True),
        lambda: pool[:count].copy_(host[:count], non_blocking=True),
    )
