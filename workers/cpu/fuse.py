"""Puts a loaded model on the fastest path that a CPU has for it, and proves the path right.

From the fastest: whole native layers, for decoders of the Llama family; native attention under the
model's own modules; plain torch. Which it became, and why no faster one, is logged and told.
"""

import logging
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from blockyard.cuda.backend import AttentionBackend, AttentionBatch, HeadShape
from blockyard.cuda.reference import ReferenceBackend
from blockyard.workers.attention import CachedAttention
from blockyard.workers.contract import UnsupportedModel
from blockyard.workers.cpu.attention import NativeBackend
from blockyard.workers.cpu.compiler import NativeUnavailable
from blockyard.workers.cpu.decoder import NativeDecoder
from blockyard.workers.cpu.library import NativePool, load_library
from blockyard.workers.cpu.packed import PackedLinear, WeightStorage
from blockyard.workers.cpu.recognise import DecoderParts, NotRecognised, recognise
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.model import DecoderModel

__all__ = ["CpuPath", "put_on_cpu_path", "worst_difference"]

logger = logging.getLogger(__name__)

MOST_DIFFERENCE = 1e-3
"""Of the logits' own size. Sums in another order differ by some 1e-5, another formula by 1e-1."""

_CHECK_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class CpuPath:
    """What a model runs on. `reason` is why nothing faster, empty for whole native layers."""

    backend: AttentionBackend
    name: str
    reason: str


def put_on_cpu_path(
    model: DecoderModel,
    threads: int,
    context_tokens: int,
    storage: WeightStorage,
    kv_dtype: torch.dtype | None = None,
) -> CpuPath:
    """Have `model` run as fast as can be; its original weights are given up where it can.

    Args:
        model: loaded, on the CPU.
        threads: of a step.
        context_tokens: positions are below it.
        storage: of weights; what is not fp32 needs whole native layers.
        kv_dtype: of keys and values in blocks; None means the model's.

    Raises:
        UnsupportedModel: the storage cannot be had for this model or on this machine.
    """
    path = _choose(model, threads, context_tokens, storage, kv_dtype or model.dtype)
    if path.reason and storage is not WeightStorage.FP32:
        raise UnsupportedModel(f"weights cannot be kept in {storage}: {path.reason}; use fp32")
    logger.info("%s%s", path.name, f": {path.reason}" if path.reason else "")
    return path


def _choose(
    model: DecoderModel,
    threads: int,
    context_tokens: int,
    storage: WeightStorage,
    kv_dtype: torch.dtype,
) -> CpuPath:
    try:
        pool = load_library().pool(threads)
    except NativeUnavailable as error:
        return CpuPath(ReferenceBackend(), "plain torch", str(error))
    backend = NativeBackend(pool)
    shape = model.attention
    head_shape = HeadShape(
        *(shape.heads, shape.kv_heads, shape.head_dim),
        *(_CHECK_BLOCK_SIZE, model.dtype, kv_dtype),
    )
    for form in shape.forms:
        refusal = backend.refusal(head_shape, form)
        if refusal is not None:
            return CpuPath(ReferenceBackend(), "plain torch", refusal)
    try:
        _fuse(model, pool, context_tokens, storage)
    except NotRecognised as error:
        return CpuPath(backend, "native attention under torch layers", str(error))
    return CpuPath(backend, f"native layers, weights in {storage}", "")


def _fuse(
    model: DecoderModel, pool: NativePool, context_tokens: int, storage: WeightStorage
) -> None:
    parts = recognise(model.module)
    with torch.inference_mode():
        decoder = NativeDecoder(
            pool, parts, model.attention.forms, model.attention.head_dim, context_tokens, storage
        )
        if storage is not WeightStorage.FP32:
            _take_stored_weights(parts, decoder)
        difference = worst_difference(model, decoder, NativeBackend(pool), context_tokens)
    if not difference <= MOST_DIFFERENCE:
        raise NotRecognised(f"native layers differ from the model's by {difference:.1e}")
    _give_up_weights(parts, decoder)
    model.fuse(decoder)


def worst_difference(
    model: DecoderModel, decoder: NativeDecoder, backend: AttentionBackend, context_tokens: int
) -> float:
    """How far `decoder` is from the model's own modules, as a share of the greatest logit.

    Two requests go through two steps: chunks first, then one token beside another chunk.
    """
    shape = model.attention
    geometry = KVGeometry(
        shape.layers, shape.kv_heads, shape.head_dim, _CHECK_BLOCK_SIZE, model.dtype
    )
    caches = [KVCache(geometry, 4, torch.device("cpu")) for _ in range(2)]
    tables = np.array([[2, 0], [1, 3]], dtype=np.int32)
    first = [min(21, context_tokens - 1), min(5, context_tokens - 1)]
    second = [1, min(12, context_tokens - first[1])]
    worst = 0.0
    draw = torch.Generator().manual_seed(0)
    for starts, counts in (([0, 0], first), (first, second)):
        positions = np.concatenate(
            [np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
        )
        rows = np.repeat([0, 1], counts)
        slots = tables[rows, positions // _CHECK_BLOCK_SIZE].astype(np.int64)
        batch = AttentionBatch(
            counts=np.array(counts, dtype=np.int32),
            lengths=np.array(starts, dtype=np.int32) + np.array(counts, dtype=np.int32),
            block_tables=torch.from_numpy(tables),
            slots=torch.from_numpy(slots * _CHECK_BLOCK_SIZE + positions % _CHECK_BLOCK_SIZE),
            block_size=_CHECK_BLOCK_SIZE,
        )
        tokens = torch.randint(0, model.vocab_size, (len(rows),), generator=draw)
        at = torch.from_numpy(positions)
        wanted = torch.from_numpy(np.cumsum(counts) - 1)
        original = model.forward(
            tokens, at, wanted, CachedAttention(caches[0], ReferenceBackend().begin(batch))
        )
        native = decoder.forward(
            tokens, at, wanted, CachedAttention(caches[1], backend.begin(batch))
        )
        worst = max(worst, float((native - original).abs().max() / original.abs().max()))
    return worst


def _take_stored_weights(parts: DecoderParts, decoder: NativeDecoder) -> None:
    """Give the original the weights that the decoder has after packing: then both must agree."""

    def take(packed: PackedLinear, *linears: nn.Linear) -> None:
        for linear, weight in zip(linears, packed.restore(), strict=True):
            linear.weight.copy_(weight)

    for layer, packed in zip(parts.layers, decoder.layers, strict=True):
        take(packed.projections, layer.query, layer.key, layer.value)
        take(packed.output, layer.output)
        take(packed.gate_up, layer.gate, layer.up)
        take(packed.down, layer.down)
    take(decoder.head, parts.head)


def _give_up_weights(parts: DecoderParts, decoder: NativeDecoder) -> None:
    nothing = nn.Parameter(torch.empty(0), requires_grad=False)
    for layer in parts.layers:
        for linear in layer.linears():
            linear.weight = nothing
    parts.head.weight = nothing
    if not decoder.keeps_embedding:
        parts.embedding.weight = nothing
