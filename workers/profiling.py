"""The steps that are run at load to measure this rank: how much memory, how fast, how fast a link.

Builds batches that no plan made and times them; what they compute means nothing. Does not know
the model that runs them. Units: tokens and bytes per second.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from blockyard.cuda.backend import AttentionBatch
from blockyard.scheduler.plan import BlockCopy
from blockyard.scheduler.sampling import MAX_LOGPROBS, SamplingParams
from blockyard.workers.batch import FlatBatch
from blockyard.workers.batch_parts import PromptRow
from blockyard.workers.config import WorkerConfig
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.logit_rules import rules_for
from blockyard.workers.sampler import SampleRow, rows_drawn_at_once

__all__ = ["largest_batch", "measure_link", "measure_prefill"]

_DECODE_LENGTH = 256
"""Context of the decoding requests in the largest step: enough to fill a backend's workspace."""

_WARM_UP_TOKENS = 16
_PREFILL_TOKENS = 512
_CPU_PREFILL_TOKENS = 128
"""A CPU is as fast with few tokens as with many, and loading should not take longer for it."""

_LINK_BYTES = 64 << 20
"""Enough for a copy to leave the processor's caches."""


def largest_batch(config: WorkerConfig, vocabulary: int, device: torch.device) -> FlatBatch:
    """A full step: one scored chunk, one request at the longest context, the rest decoding.

    All are sampled with the options that take the most memory; as many are drawn, which is slow,
    as are drawn together.

    Every block table points at block 0: the values mean nothing, the memory is that of real ones.
    """
    requests = max(1, min(config.max_running, config.max_step_tokens))
    counts = np.ones(requests, dtype=np.int32)
    counts[0] = min(config.max_step_tokens - requests + 1, config.max_context_tokens)
    lengths = np.full(requests, min(_DECODE_LENGTH, config.max_context_tokens), dtype=np.int32)
    lengths[0] = counts[0]
    lengths[-1] = config.max_context_tokens
    drawn = rows_drawn_at_once(vocabulary)
    sampled = tuple(_costly_row(row < drawn, vocabulary, device) for row in range(requests))
    batch = _batch(counts, lengths, config, sampled, device)
    scored = torch.arange(int(counts[0]) - 1, device=device)
    return replace(
        batch,
        sample_tokens=torch.cat((batch.sample_tokens, scored)),
        prompt_rows=(PromptRow(0, 1, (0,) * len(scored), MAX_LOGPROBS),),
    )


def measure_prefill(
    config: WorkerConfig, device: torch.device, run: Callable[[FlatBatch], object]
) -> float:
    """Tokens per second of one prompt's chunk, as long as a step takes, up to 512 tokens.

    On a CPU up to 128.

    Args:
        config: bounds the chunk.
        device: where the batch goes.
        run: runs a batch to its end on any pool, which has at least block 0.
    """
    most = _CPU_PREFILL_TOKENS if device.type == "cpu" else _PREFILL_TOKENS
    tokens = min(config.max_step_tokens, config.max_context_tokens, most)
    seconds = 0.0
    for count in (min(tokens, _WARM_UP_TOKENS), tokens):
        counts = np.array([count], dtype=np.int32)
        greedy = SampleRow(SamplingParams(temperature=0.0), position=0, produced=0)
        batch = _batch(counts, counts, config, (greedy,), device)
        began = time.perf_counter()
        run(batch)
        seconds = time.perf_counter() - began
    return tokens / seconds


def measure_link(geometry: KVGeometry, most_blocks: int, device: torch.device) -> float:
    """Bytes per second that go over the link to the host, scattered blocks there and back.

    Args:
        geometry: shape of a block.
        most_blocks: blocks that may be made on either side for this.
        device: the other end.
    """
    blocks = max(1, min(most_blocks, _LINK_BYTES // geometry.block_bytes))
    cache = KVCache(geometry, blocks, device, blocks)
    cache.clear()
    # In reverse, so that no two blocks are neighbours on both sides: swaps in use seldom are.
    moves = tuple(BlockCopy(block, blocks - 1 - block) for block in range(blocks))
    cache.move(swap_outs=moves)  # the first use of a page is the system's time, not the link's
    seconds = cache.move(swap_outs=moves, swap_ins=moves)
    return 2 * blocks * geometry.block_bytes / seconds


def _costly_row(drawn: bool, vocabulary: int, device: torch.device) -> SampleRow:
    sampling = SamplingParams(
        temperature=1.0 if drawn else 0.0,
        top_p=0.5,
        typical_p=0.5,
        repetition_penalty=1.5,
        logprobs=MAX_LOGPROBS,
    )
    rules = rules_for(sampling, 0, (), vocabulary, device)
    return SampleRow(sampling, position=0, produced=0, rules=rules)


def _batch(
    counts: np.ndarray[tuple[int], np.dtype[np.int32]],
    lengths: np.ndarray[tuple[int], np.dtype[np.int32]],
    config: WorkerConfig,
    rows: tuple[SampleRow, ...],
    device: torch.device,
) -> FlatBatch:
    """A batch in block 0 alone; every request is sampled."""
    requests = len(counts)
    widest = -(-int(lengths.max()) // config.block_size)
    zeros = torch.zeros(int(counts.sum()), dtype=torch.int64, device=device)
    return FlatBatch(
        input_ids=zeros,
        positions=zeros,
        attention=AttentionBatch(
            counts=counts,
            lengths=lengths,
            block_tables=torch.zeros(requests, widest, dtype=torch.int32, device=device),
            slots=zeros,
            block_size=config.block_size,
        ),
        sample_tokens=torch.from_numpy(np.cumsum(counts) - 1).to(device, torch.int64),
        sample_rows=rows,
        sample_handles=tuple(range(requests)),
    )
