"""Decode steps of a whole model as CUDA graphs: their logits and their time, beside eager steps."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from cases import BLOCK_SIZE
from child import Context
from end_to_end import random_model

from blockyard.cuda.backend import AttentionBatch
from blockyard.cuda.kernel_backend import KernelBackend
from blockyard.workers.attention import ATTENTION_NAME, CachedAttention
from blockyard.workers.batch import FlatBatch
from blockyard.workers.collectives import Communicator
from blockyard.workers.graph_capture import CudaCapturer
from blockyard.workers.graphs import DecodeGraphs, NewCapturer
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.loader import register_attention
from blockyard.workers.model import DecoderModel

__all__ = ["graphs"]

_ALLOWED = 0.03
"""Of the greatest logit: rounding to bfloat16 in another order, through all layers."""

_REPEATS = 20


def graphs(context: Context) -> None:
    """Captures some sizes, replays each for two different steps, and times them."""
    device, shape = context.device, context.sizes.one_billion
    rows, tokens = ((1, 2), 40) if device.emulated else ((64, 8, 1), 1024)
    register_attention()
    whole = random_model(context, shape, tokens)
    whole.set_attn_implementation(ATTENTION_NAME)
    model = DecoderModel(whole, tokens)
    backend = KernelBackend(device.library, device.torch_device, device.slots)
    seen = model.attention
    widest = -(-tokens // BLOCK_SIZE)
    geometry = KVGeometry(seen.layers, seen.kv_heads, seen.head_dim, BLOCK_SIZE, torch.bfloat16)
    cache = KVCache(geometry, max(rows) * widest, device.torch_device, null_block=True)
    cache.blocks.normal_()
    new_capturer: NewCapturer = (
        _Again if device.emulated else partial(CudaCapturer, device.torch_device)
    )
    meter = new_capturer()
    with torch.inference_mode():
        before = meter.held_bytes()
        null_slot = cache.null_block * BLOCK_SIZE
        static = backend.static_decode(max(rows), widest, BLOCK_SIZE, null_slot)
        captured = DecodeGraphs(model, cache, static, new_capturer, max(rows), Communicator())
        for count in rows:
            if context.out_of_time(1):
                return
            steps = [_step(context, count, tokens, seed) for seed in range(2)]
            began = time.perf_counter()
            captured.run(steps[1])
            seconds = time.perf_counter() - began
            for batch in steps:
                _compare(context, model, cache, backend, captured, batch)
            batch = steps[0]
            context.row(
                what="step",
                rows=count,
                **device.wall(partial(captured.run, batch), _REPEATS).row(),
                **device.wall(partial(_eager, model, cache, backend, batch), _REPEATS).row(
                    "eager_"
                ),
                capture_seconds=round(seconds, 3),
                held_mib=round((meter.held_bytes() - before) / 2**20, 1),
            )


def _compare(
    context: Context,
    model: DecoderModel,
    cache: KVCache,
    backend: KernelBackend,
    captured: DecodeGraphs,
    batch: FlatBatch,
) -> None:
    found = captured.run(batch)
    if found is None or captured.failed:
        context.row(what="logits", rows=len(batch.input_ids), captured=False, correct=False)
        return
    found = found.float().cpu()
    wanted = _eager(model, cache, backend, batch).float().cpu()
    worst = float((found - wanted).abs().max() / wanted.abs().max())
    context.row(
        what="logits",
        rows=len(batch.input_ids),
        captured=True,
        equal=bool(torch.equal(found, wanted)),
        worst=worst,
        allowed=_ALLOWED,
        correct=worst <= _ALLOWED,
    )


def _eager(
    model: DecoderModel, cache: KVCache, backend: KernelBackend, batch: FlatBatch
) -> torch.Tensor:
    attention = CachedAttention(cache, backend.begin(batch.attention))
    return model.forward(batch.input_ids, batch.positions, batch.sample_tokens, attention)


def _step(context: Context, rows: int, tokens: int, seed: int) -> FlatBatch:
    """One token of each of some requests, whose blocks lie anywhere."""
    device, widest = context.device.torch_device, -(-tokens // BLOCK_SIZE)
    chance = np.random.default_rng(seed)
    lengths = chance.integers(1, tokens + 1, rows).astype(np.int32)
    tables = chance.permutation(rows * widest).astype(np.int32).reshape(rows, widest)
    positions = lengths.astype(np.int64) - 1
    slots = tables[np.arange(rows), positions // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE
    ids = chance.integers(0, context.sizes.one_billion.vocabulary, rows)
    return FlatBatch(
        input_ids=torch.from_numpy(ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        attention=AttentionBatch(
            counts=np.ones(rows, dtype=np.int32),
            lengths=lengths,
            block_tables=torch.from_numpy(tables).to(device),
            slots=torch.from_numpy(slots + positions % BLOCK_SIZE).to(device),
            block_size=BLOCK_SIZE,
            host_tables=tables,
        ),
        sample_tokens=torch.arange(rows, device=device),
        sample_rows=(),
        sample_handles=(),
    )


@dataclass
class _Run:
    """A rehearsed graph: what was captured is called again."""

    run: Callable[[], torch.Tensor]
    output: torch.Tensor

    def replay(self) -> None:
        self.output = self.run()


class _Again:
    """Rehearses a `Capturer`."""

    def warm_up(self, run: Callable[[], torch.Tensor]) -> None:
        run()

    def capture(self, run: Callable[[], torch.Tensor]) -> _Run:
        return _Run(run, run())

    def held_bytes(self) -> int:
        return 0
