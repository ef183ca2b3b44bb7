"""How fast tokens are chosen, beside the usual way in torch, which sorts every row."""

from collections.abc import Callable

import torch
from child import Context

from blockyard.cuda.sampling import RowSampling, choose_tokens

__all__ = ["sampling"]

_REPEATS = 20


def sampling(context: Context) -> None:
    """Whole batches, from logits to tokens on the device."""
    device = context.device
    count, vocabulary = context.sizes.logits
    logits = torch.randn(count, vocabulary, device=device.torch_device) * 3
    kinds = {
        "greedy": RowSampling(),
        "temperature": RowSampling(0.8),
        "top-k 50": RowSampling(0.8, top_k=50),
        "top-p 0.9": RowSampling(0.8, top_p=0.9),
        "top-k 50, top-p 0.9": RowSampling(0.8, top_k=50, top_p=0.9),
    }
    for name, kind in kinds.items():
        if context.out_of_time(1):
            return
        rows = [RowSampling(kind.temperature, kind.top_k, kind.top_p, seed=n) for n in range(count)]

        def ours(rows: list[RowSampling] = rows) -> object:
            return choose_tokens(device.library, logits, rows)

        def torchs(kind: RowSampling = kind) -> object:
            return _by_sort(logits, kind)

        context.row(
            sampling=name,
            rows=count,
            vocabulary=vocabulary,
            **_wall(context, ours, ""),
            **_wall(context, torchs, "torch_"),
        )


def _wall(context: Context, run: Callable[[], object], prefix: str) -> dict[str, float]:
    timing = context.device.wall(run, _REPEATS)
    return {f"{prefix}us": round(1e6 * timing.seconds, 2)}


def _by_sort(logits: torch.Tensor, kind: RowSampling) -> torch.Tensor:
    if kind.temperature == 0:
        return logits.argmax(dim=-1)
    scores = logits / kind.temperature
    if kind.top_k == 0 and kind.top_p == 1.0:
        return scores.softmax(dim=-1).multinomial(1)
    ordered, ids = scores.sort(dim=-1, descending=True)
    if kind.top_k:
        ordered[:, kind.top_k :] = float("-inf")
    weights = ordered.softmax(dim=-1)
    if kind.top_p < 1:
        weights[weights.cumsum(dim=-1) - weights >= kind.top_p] = 0
    return ids.gather(1, weights.multinomial(1))
