"""What it costs to keep keys and values in fewer bits: how well a text is foretold.

Every key and value of the text is read from its block, as in serving. How well one text is foretold
is partly chance: what the dtype changes makes single tokens likelier as well as less likely. So the
change is told with its standard error, and beside it how far what is foretold is from that of
float32, which is no matter of luck. Units: tokens, nats.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from blockyard.workers.cpu.packed import WeightStorage
from blockyard.workers.cpu.perplexity import foretell, own_losses

__all__ = ["KvQuality", "KvQualityBench", "measure_kv_quality"]

_STORED = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
_TEXT_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class KvQuality:
    """One KV dtype.

    Attributes:
        loss: by how much its perplexity is above that of float32, as a share.
        loss_error: standard error of `loss`, if the tokens were drawn by chance from such texts.
        divergence: Kullback-Leibler divergence of what is foretold from that of float32, in nats,
            on average.
    """

    kv_dtype: str
    perplexity: float
    loss: float
    loss_error: float
    divergence: float


@dataclass(frozen=True, slots=True)
class KvQualityBench:
    """All of them, over the first `tokens` tokens of a text; weights are in float32."""

    model: str
    tokens: int
    kinds: tuple[KvQuality, ...]


def measure_kv_quality(
    directory: Path,
    threads: int,
    text_tokens: Sequence[int],
    progress: Callable[[str], None] = lambda _: None,
) -> KvQualityBench:
    """Measure float32, bfloat16, int8 and fp8; takes about a minute.

    Raises:
        ValueError: the text has less than two tokens, so that nothing is foretold.
    """
    tokens = text_tokens[:_TEXT_TOKENS]
    if len(tokens) < 2:
        raise ValueError(f"the text has {len(tokens)} tokens; it needs at least 2")
    found: list[KvQuality] = []
    exact: torch.Tensor | None = None
    for name, dtype in _STORED.items():
        progress(f"perplexity with keys and values in {name}")
        foretold = foretell(directory, tokens, WeightStorage.FP32, threads, dtype)
        exact = foretold if exact is None else exact
        found.append(_compare(name, foretold, exact, tokens))
    return KvQualityBench(directory.name, len(tokens), tuple(found))


def _compare(
    name: str, foretold: torch.Tensor, exact: torch.Tensor, tokens: Sequence[int]
) -> KvQuality:
    """What is foretold with one dtype against what is with float32."""
    losses = own_losses(foretold, tokens)
    worse = losses - own_losses(exact, tokens)
    loss = math.expm1(float(worse.mean()))
    error = float(worse.std(correction=0)) / math.sqrt(len(worse)) * (1 + loss)
    apart = float((exact.exp() * (exact - foretold)).sum(1).double().mean())
    perplexity = math.exp(float(losses.mean()))
    return KvQuality(
        name, round(perplexity, 4), round(loss, 6), round(error, 6), round(max(apart, 0.0), 6)
    )
