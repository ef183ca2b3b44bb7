"""torch's own attention over a dense cache, which needs no block table: the nearest rival."""

from collections.abc import Callable
from typing import Any

import torch
from cases import Arena
from child import Context
from sizes import Heads
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["sdpa_decode", "sdpa_prefill"]

_BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
_REHEARSED = {"flash": SDPBackend.MATH}
_MESSAGE_LENGTH = 120


def sdpa_decode(
    context: Context, arena: Arena, heads: Heads, batch: int, length: int, layers: int
) -> dict[str, Any]:
    """Microseconds of one token a request, by backend, or why there is no number.

    Each is tried with the query heads of a KV head as heads and as rows of one head, which reads
    keys once; the faster counts. As for the kernels, other keys are read each time, from `layers`.
    """
    pool = arena.take(torch.bfloat16, layers, 2, batch, heads.kv_heads, length, heads.dim)
    device = context.device.torch_device
    shape = (batch, heads.heads, 1, heads.dim)
    queries = torch.empty(shape, dtype=torch.bfloat16, device=device).normal_()
    folded = queries.view(batch, heads.kv_heads, -1, heads.dim)

    def by_head() -> None:
        for keys, values in pool:
            scaled_dot_product_attention(queries, keys, values, enable_gqa=True)

    def by_row() -> None:
        for keys, values in pool:
            scaled_dot_product_attention(folded, keys, values)

    return _fastest(context, (by_head, by_row), layers)


def sdpa_prefill(context: Context, heads: Heads, batch: int, length: int) -> dict[str, Any]:
    """Microseconds of whole prompts of one length, causal, by backend."""
    device = context.device.torch_device

    def random(count: int) -> torch.Tensor:
        shape = (batch, count, length, heads.dim)
        return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_()

    queries, keys, values = random(heads.heads), random(heads.kv_heads), random(heads.kv_heads)

    def run() -> None:
        scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)

    return _fastest(context, (run,), 1)


def _fastest(context: Context, runs: tuple[Callable[[], None], ...], calls: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    backends = _REHEARSED if context.device.emulated else _BACKENDS
    for name, backend in backends.items():
        messages = []
        times = []
        for run in runs:
            try:
                with sdpa_kernel(backend):
                    times.append(context.device.time(run, calls).seconds)
            except RuntimeError as error:
                messages.append(str(error)[:_MESSAGE_LENGTH])
        key = f"sdpa_{name}_us"
        found[key] = round(1e6 * min(times), 3) if times else "; ".join(messages)
    return found
