"""What is measured at load: that the right batches run, and that rates follow from their time."""

from dataclasses import replace

import pytest
import torch

from blockyard.workers import profiling
from blockyard.workers.batch import FlatBatch
from blockyard.workers.config import WorkerConfig
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.profiling import largest_batch, measure_link, measure_prefill

CPU = torch.device("cpu")
CONFIG = WorkerConfig(
    "", max_context_tokens=1000, block_size=16, max_step_tokens=512, max_running=8
)


class Clock:
    """Every look at it costs what the test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_largest_batch_is_a_full_step() -> None:
    vocabulary = 2**20 // 4 - 1
    batch = largest_batch(CONFIG, vocabulary, CPU)
    assert batch.attention.counts.tolist() == [505] + [1] * 7
    assert batch.attention.lengths.tolist() == [505] + [256] * 6 + [1000]
    assert batch.attention.block_tables.shape == (8, 63)
    assert len(batch.input_ids) == 512
    assert batch.sample_tokens.tolist() == [*range(504, 512), *range(504)]
    assert [len(row.token_ids) for row in batch.prompt_rows] == [504]
    assert [row.sampling.greedy for row in batch.sample_rows] == [False] * 4 + [True] * 4
    assert all(row.rules is not None for row in batch.sample_rows)


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        (CONFIG, 128),
        (replace(CONFIG, max_step_tokens=40), 40),
        (replace(CONFIG, max_context_tokens=5), 5),
    ],
)
def test_prefill_rate_is_that_of_the_warm_run(
    monkeypatch: pytest.MonkeyPatch, config: WorkerConfig, tokens: int
) -> None:
    clock = Clock()
    monkeypatch.setattr(profiling, "time", clock)
    ran: list[int] = []

    def run(batch: FlatBatch) -> None:
        ran.append(len(batch.input_ids))
        clock.now += 100.0 if len(ran) == 1 else 0.5

    assert measure_prefill(config, CPU, run) == tokens / 0.5
    assert ran == [min(tokens, 16), tokens]


@pytest.mark.parametrize("most_blocks", [1, 7])
def test_link_rate_counts_both_ways(monkeypatch: pytest.MonkeyPatch, most_blocks: int) -> None:
    geometry = KVGeometry(layers=1, kv_heads=1, head_dim=4, block_size=4, dtype=torch.float32)
    seconds = iter([50.0, 2.0])
    monkeypatch.setattr(KVCache, "move", lambda cache, **moves: next(seconds))
    rate = measure_link(geometry, most_blocks, CPU)
    assert rate == 2 * most_blocks * geometry.block_bytes / 2.0
