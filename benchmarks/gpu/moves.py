"""Blocks that move beside a step: what they come to, and what each costs the other."""

import torch
from child import Context

from blockyard.cuda.block_copy import BlockMover
from blockyard.scheduler.plan import BlockCopy, StepPlan, StepResult
from blockyard.workers.block_transfers import BlockTransfers
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.move_lanes import lanes_of

__all__ = ["beside_a_step"]

_NOTHING = ((),) * 8


def beside_a_step(context: Context) -> None:
    """Swaps out and in while the device computes something else, and alone."""
    for block_bytes, count in context.sizes.swaps:
        if context.out_of_time(1):
            return
        _measure(context, block_bytes, count)


def _measure(context: Context, block_bytes: int, count: int) -> None:
    device = context.device
    geometry = KVGeometry(1, 1, block_bytes // (2 * 16 * 2), 16, torch.bfloat16)
    cache = KVCache(
        geometry,
        2 * count,
        device.torch_device,
        count,
        lambda pool, host: BlockMover(device.library, pool, host),
    )
    numbers = torch.arange(cache.pool.shape[0], device=device.torch_device) % 251
    cache.pool.copy_(numbers[:, None].expand_as(cache.pool))
    transfers = BlockTransfers(cache, lanes_of(device.torch_device))
    size = 64 if device.emulated else 8192
    left = torch.randn(size, size, device=device.torch_device, dtype=torch.bfloat16)
    out = tuple(BlockCopy(2 * block, block) for block in range(count))
    back = tuple(BlockCopy(block, 2 * block + 1) for block in range(count))
    step = 0

    def move() -> None:
        nonlocal step
        for columns in ({"swap_outs": out}, {"swap_ins": back}):
            step += 1
            transfers.begin(StepPlan(step, *_NOTHING, **columns), None)

    def compute() -> None:
        for _ in range(4):
            torch.mm(left, left)

    def together() -> None:
        move()
        compute()

    alone = {name: device.wall(run).seconds for name, run in (("moves", move), ("step", compute))}
    both = device.wall(together).seconds
    transfers.finish()
    told = transfers.tell(StepResult(step, ()))
    same = bool(torch.equal(cache.pool[1::2], cache.pool[::2]))
    same &= bool(torch.equal(cache.host_pool, cache.pool[::2].cpu()))
    context.row(
        block_bytes=block_bytes,
        count=count,
        **{f"{name}_ms": round(1e3 * seconds, 3) for name, seconds in alone.items()},
        both_ms=round(1e3 * both, 3),
        gb_per_s=told.moved_blocks * block_bytes / max(told.copy_seconds, 1e-9) / 1e9,
        correct=same and not told.moving,
    )
