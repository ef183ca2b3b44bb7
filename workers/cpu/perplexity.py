"""How well a model foretells a text with weights and KV in fewer bits: what those cost."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from blockyard.cuda.backend import AttentionBackend, AttentionBatch
from blockyard.cuda.reference import ReferenceBackend
from blockyard.workers.attention import CachedAttention
from blockyard.workers.collectives import Communicator
from blockyard.workers.config import WorkerConfig
from blockyard.workers.cpu.fuse import put_on_cpu_path
from blockyard.workers.cpu.packed import WeightStorage
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.kv_scales import settle_head_scales
from blockyard.workers.loader import load_model
from blockyard.workers.progress import SilentProgress

__all__ = ["foretell", "measure_perplexity", "own_losses"]

_BLOCK_SIZE = 16


def measure_perplexity(
    directory: Path,
    tokens: Sequence[int],
    storage: WeightStorage,
    threads: int,
    kv_dtype: torch.dtype = torch.float32,
) -> float:
    """Perplexity of a model, every token seen after all before it; see `foretell`."""
    foretold = foretell(directory, tokens, storage, threads, kv_dtype)
    return math.exp(float(own_losses(foretold, tokens).mean()))


def own_losses(foretold: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """How surprising each token after the first was, float64: its log probability below 0."""
    own = foretold.gather(1, torch.tensor(tokens)[1:, None])
    return -own[:, 0].double()


def foretell(
    directory: Path,
    tokens: Sequence[int],
    storage: WeightStorage,
    threads: int,
    kv_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Log probabilities of whatever could come after each token but the last.

    Float32 `[tokens - 1, vocabulary]`.

    Args:
        directory: of the model.
        tokens: the text.
        storage: of the weights.
        threads: that work.
        kv_dtype: of the keys and values, which are all read from their blocks; float8 by plain
            torch, for no CPU path reads it.
    """
    count = len(tokens)
    cpu = torch.device("cpu")
    model = load_model(directory, cpu, "float32", count, SilentProgress(), Communicator())
    backend: AttentionBackend = ReferenceBackend()
    if kv_dtype is not torch.float8_e4m3fn:
        backend = put_on_cpu_path(model, threads, count, storage, kv_dtype).backend
    shape = model.attention
    geometry = KVGeometry(shape.layers, shape.kv_heads, shape.head_dim, _BLOCK_SIZE, kv_dtype)
    blocks = -(-count // _BLOCK_SIZE)
    batch = AttentionBatch(
        counts=np.array([count], dtype=np.int32),
        lengths=np.array([count], dtype=np.int32),
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
        slots=torch.arange(count),
        block_size=_BLOCK_SIZE,
    )
    cache = KVCache(geometry, blocks, cpu)
    settle_head_scales(cache, model, WorkerConfig(str(directory), count))
    ids, places = torch.tensor(tokens), torch.arange(count)
    with torch.inference_mode():
        attention = CachedAttention(cache, backend.begin(batch))
        logits = model.forward(ids, places, places[:-1], attention)
        return logits.float().log_softmax(1)
