"""Counting blocks: the numbers that decide, and the numbers that an error names."""

from dataclasses import replace

import pytest
import torch

from blockyard.workers import memory
from blockyard.workers.config import WorkerConfig
from blockyard.workers.memory import (
    NoRoom,
    count_blocks,
    count_host_blocks,
    default_budget,
    measure_peak,
)

CPU = torch.device("cpu")
CONFIG = WorkerConfig(model_dir="", max_context_tokens=1000, block_size=16, max_running=8)
CONTEXT_BLOCKS = 63


def test_given_memory_is_for_blocks_alone() -> None:
    config = replace(CONFIG, kv_memory_bytes=100 * 4096 + 4095)
    assert count_blocks(config, 4096, activation_bytes=10**12, device=CPU) == 100


def test_default_memory_pays_for_the_step_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "default_budget", lambda device: 100 * 4096)
    assert count_blocks(CONFIG, 4096, activation_bytes=10 * 4096 + 1, device=CPU) == 89


def test_never_more_than_useful() -> None:
    config = replace(CONFIG, kv_memory_bytes=2**40)
    assert count_blocks(config, 4096, 0, CPU) == 8 * CONTEXT_BLOCKS


def test_exactly_one_context_is_enough() -> None:
    config = replace(CONFIG, kv_memory_bytes=CONTEXT_BLOCKS * 4096)
    assert count_blocks(config, 4096, 0, CPU) == CONTEXT_BLOCKS
    with pytest.raises(NoRoom, match=r"room for 62, but one context of 1000 tokens needs 63"):
        count_blocks(replace(config, kv_memory_bytes=CONTEXT_BLOCKS * 4096 - 1), 4096, 0, CPU)


def test_default_budget_leaves_most_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_available_bytes", lambda: 2 << 30)
    assert default_budget(CPU) == 512 << 20
    monkeypatch.setattr(memory, "_available_bytes", lambda: 64 << 30)
    assert default_budget(CPU) == 1 << 30


def test_host_blocks_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_available_bytes", lambda: 1 << 30)
    assert count_host_blocks(CONFIG, 1 << 20, 10_000, CPU) == 256
    assert count_host_blocks(CONFIG, 1 << 20, 100, CPU) == 100
    monkeypatch.setattr(memory, "_available_bytes", lambda: 64 << 30)
    assert count_host_blocks(CONFIG, 1 << 20, 10**6, CPU) == 512
    assert count_host_blocks(CONFIG, 1 << 20, 10**6, torch.device("cuda")) == 16 << 10
    assert count_host_blocks(replace(CONFIG, num_host_blocks=0), 1 << 20, 100, CPU) == 0
    assert count_host_blocks(replace(CONFIG, num_host_blocks=999), 1 << 20, 100, CPU) == 999


def test_peak_is_seen_even_when_given_back() -> None:
    size = 256 << 20

    def step() -> None:
        torch.ones(size // 4, dtype=torch.float32).sum()

    assert 0.9 * size < measure_peak(step, CPU) < 1.5 * size
