"""What it costs to keep keys and values in fewer bits: how well a text is foretold.

Every key and value of the text is read from its block, as in serving. Units: tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from blockyard.workers.cpu.packed import WeightStorage
from blockyard.workers.cpu.perplexity import measure_perplexity

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
    """One KV dtype; `loss` is by how much its perplexity is above that of float32, as a share."""

    kv_dtype: str
    perplexity: float
    loss: float


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
    exact: float | None = None
    for name, dtype in _STORED.items():
        progress(f"perplexity with keys and values in {name}")
        value = measure_perplexity(directory, tokens, WeightStorage.FP32, threads, dtype)
        exact = exact or value
        found.append(KvQuality(name, round(value, 4), round(value / exact - 1, 6)))
    return KvQualityBench(directory.name, len(tokens), tuple(found))
