"""FlashInfer's decode on the same shapes, if it is installed. Its first call compiles: minutes."""

import importlib.util
import time

import torch
from cases import BLOCK_SIZE
from child import Context
from speed import decode_bytes, make_arena

__all__ = ["decode"]

_CASES = 6
_WORKSPACE_BYTES = 256 << 20


def decode(context: Context) -> None:
    """The first cases of the decode part; with tensor cores and without, both its own ways."""
    if importlib.util.find_spec("flashinfer") is None:
        context.row(skipped="FlashInfer is not installed")
        return
    import flashinfer

    device = context.device.torch_device
    arena = make_arena(context)
    heads = context.sizes.decode_heads[0]
    int32 = {"dtype": torch.int32, "device": device}
    for batch, length in context.sizes.decode[:_CASES]:
        blocks = batch * length // BLOCK_SIZE
        pool = arena.take(torch.bfloat16, blocks, 2, heads.kv_heads, BLOCK_SIZE, heads.dim)
        queries = torch.randn(batch, heads.heads, heads.dim, dtype=torch.bfloat16, device=device)
        for tensor_cores in (True, False):
            if context.out_of_time(1):
                return
            began = time.perf_counter()
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device),
                "HND",
                use_tensor_cores=tensor_cores,
            )
            wrapper.plan(
                torch.arange(0, blocks + 1, length // BLOCK_SIZE, **int32),
                torch.randperm(blocks, device=device).int(),
                torch.full((batch,), BLOCK_SIZE, **int32),
                heads.heads,
                heads.kv_heads,
                heads.dim,
                BLOCK_SIZE,
                q_data_type=torch.bfloat16,
                kv_data_type=torch.bfloat16,
            )
            wrapper.run(queries, pool)
            context.device.settle()
            ready = time.perf_counter() - began
            timing = context.device.time(lambda: wrapper.run(queries, pool))  # noqa: B023 (called before the loop goes on)
            size = decode_bytes(heads, batch * length, torch.bfloat16)
            context.row(
                version=flashinfer.__version__,
                heads=str(heads),
                batch=batch,
                context=length,
                tensor_cores=tensor_cores,
                first_call_s=round(ready, 2),
                tb_per_s=size / timing.seconds / 1e12,
                **timing.row(),
            )
