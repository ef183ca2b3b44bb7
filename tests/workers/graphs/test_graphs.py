"""Decode steps by graphs, beside the same steps run as they come."""

import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.batch import FlatBatch
from blockyard.workers.collectives import Communicator
from blockyard.workers.config import WorkerConfig
from blockyard.workers.graphs import buckets_up_to
from blockyard.workers.worker import ModelWorker

Start = Callable[..., ModelWorker]
BLOCKS, BLOCK_SIZE = 24, 16
PROMPTS = {"a": [3, 7, 11], "b": [5], "c": list(range(20, 34)), "d": [90, 1, 2, 3, 4]}


def serve(scheduler: Any, steps: int = 18) -> dict[str, list[int]]:
    """Requests that come one after the other, prefill beside the others, and leave."""
    seeded = SamplingParams(temperature=0.8, seed=4, max_tokens=50)
    for number, (name, prompt) in enumerate(PROMPTS.items()):
        scheduler.add(name, prompt, seeded if name == "b" else None)
        for step in range(steps // len(PROMPTS)):
            running = list(PROMPTS)[: number + 1]
            if number == 3 and step == 2:
                running.remove("a")
            scheduler.run(**dict.fromkeys(running, 8))
    return {name: scheduler.output(name) for name in PROMPTS}


def test_sizes_of_graphs() -> None:
    assert buckets_up_to(1) == (1,)
    assert buckets_up_to(3) == (1, 2, 3)
    assert buckets_up_to(21) == (1, 2, 4, 8, 10, 12, 14, 16, 20, 21)
    for most in range(1, 300):
        sizes = buckets_up_to(most)
        assert sizes[-1] == most and list(sizes) == sorted(set(sizes))
        assert all(b - a <= max(1, a / 4) for a, b in itertools.pairwise(sizes) if a > 8)
    assert len(buckets_up_to(512)) < 30


def test_tokens_are_those_of_steps_that_are_run_as_they_come(
    start: Start, by_hand: Any, tapes: Any
) -> None:
    expected = serve(by_hand(start(), BLOCKS, BLOCK_SIZE))
    worker = start(tapes)
    assert len(tapes.made) == 3  # of 1, 2 and 4 rows, before the first step
    scheduler = by_hand(worker, BLOCKS, BLOCK_SIZE)
    assert serve(scheduler) == expected
    assert tapes.replayed > 8 and len(tapes.made) == 3
    # Prompts of several tokens were not replayed.
    assert tapes.replayed < scheduler.step


def test_rows_that_fill_up_write_to_the_null_block_alone(
    start: Start, by_hand: Any, tapes: Any
) -> None:
    worker = start(tapes)
    scheduler = by_hand(worker, BLOCKS, BLOCK_SIZE)
    for name, prompt in PROMPTS.items():
        scheduler.add(name, prompt)
    scheduler.run(b=16, a=16)
    scheduler.run(c=14, d=16)
    scheduler.run(c=1, b=1, d=1, a=1)  # whose places the next step has, but for the last
    scheduler.preempt("a")
    scheduler.preempt("d")
    scheduler.add("e", PROMPTS["a"])
    scheduler.run(e=8)
    cache = worker._cache
    assert cache is not None and len(cache.pool) == BLOCKS + 1 == cache.num_blocks + 1
    cache.pool[cache.null_block].fill_(0xFF)
    before, replayed = cache.pool.clone(), tapes.replayed
    scheduler.run(e=1, b=1, c=1)  # a fourth row fills up the step
    assert tapes.replayed == replayed + 1
    changed = (cache.pool != before).any(dim=1).nonzero().flatten().tolist()
    own = [
        scheduler._tables[name][(scheduler._written[name] - 1) // 16] for name in ("e", "b", "c")
    ]
    assert changed == sorted({*own, cache.null_block})


def test_what_is_sampled_may_be_some_rows(start: Start, by_hand: Any, tapes: Any) -> None:
    """A row in the middle of its prompt computes one token and samples none."""

    def answers(scheduler: Any) -> list[int]:
        scheduler.add("a", PROMPTS["a"])
        scheduler.add("c", PROMPTS["c"])
        for _ in range(8):
            scheduler.run(c=1, a=1)
        return [*scheduler.output("a"), *scheduler.output("c")]

    expected = answers(by_hand(start(), BLOCKS, BLOCK_SIZE))
    assert answers(by_hand(start(tapes), BLOCKS, BLOCK_SIZE)) == expected
    assert tapes.replayed == 8


@pytest.mark.parametrize("size", [1, 2])
def test_what_cannot_be_captured_is_said_once_and_run(
    start: Start, by_hand: Any, tapes: Any, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """A rank that is not alone runs the same rows as the others, which may have captured them."""
    expected = serve(by_hand(start(), BLOCKS, BLOCK_SIZE), 8)
    tapes.refuse = RuntimeError("operation not permitted when stream is capturing")
    with caplog.at_level(logging.WARNING):
        worker = start(tapes)
        graphs: Any = worker._graphs
        graphs._communicator = Communicator(0, size)  # it stands alone: sums are its own part
        scheduler = by_hand(worker, BLOCKS, BLOCK_SIZE)
        assert serve(scheduler, 8) == expected
        rows = _note_rows(worker)
        scheduler.run(a=1, b=1, c=1)
    said = [record.getMessage() for record in caplog.records if "CUDA graphs" in record.message]
    assert said == [f"no CUDA graphs: a decode step cannot be captured: {tapes.refuse}"]
    assert not len(graphs)
    assert rows == ({3} if size == 1 else {4})


def test_a_pool_that_is_made_anew_has_graphs_of_its_own(
    start: Start, by_hand: Any, tapes: Any
) -> None:
    worker = start(tapes)
    expected = serve(by_hand(worker, BLOCKS, BLOCK_SIZE), 8)
    old = tapes.made[:]
    replayed = [tape.replayed for tape in old]
    worker.allocate(BLOCKS)
    assert serve(by_hand(worker, BLOCKS, BLOCK_SIZE), 8) == expected
    assert [tape.replayed for tape in old] == replayed
    worker.adopt(worker._loaded())  # other weights
    assert worker._graphs is None


def test_ranks_capture_when_they_have_met_and_again_when_formed_anew(
    start: Start, by_hand: Any, tapes: Any
) -> None:
    communicator = Communicator(0, 2)
    worker = start(tapes, communicator)
    assert not tapes.made  # its sums would be its own part for ever
    graphs: Any = worker._graphs
    alone: Any = _Alone()
    communicator._transport = alone
    communicator.generation = 1
    scheduler = by_hand(worker, BLOCKS, BLOCK_SIZE)
    scheduler.add("b", [5])
    for _ in range(3):
        scheduler.run(b=1)
    assert [tape.replayed for tape in tapes.made] == [3]
    capturers = tapes.capturers
    communicator.generation = 2
    scheduler.run(b=1)
    assert [tape.replayed for tape in tapes.made] == [3, 1]
    # On a card the memory of the old graphs is gone with them.
    assert tapes.capturers == capturers + 1 and len(graphs) == 1


def test_steps_of_other_kinds_are_run_as_they_come(start: Start, by_hand: Any, tapes: Any) -> None:
    worker = start(tapes)
    scheduler = by_hand(worker, BLOCKS, BLOCK_SIZE)
    batches: list[FlatBatch] = []
    graphs: Any = worker._graphs
    run = graphs.run

    def noted(batch: FlatBatch) -> Any:
        batches.append(batch)
        return run(batch)

    graphs.run = noted
    scheduler.add("b", [5])
    scheduler.run(b=1)
    (batch,) = batches
    with torch.inference_mode():
        assert run(batch) is not None
        assert run(replace(batch, adapters=("other",))) is None
        scored = SamplingParams(temperature=0.0, prompt_logprobs=1)
        scheduler.add("scored", [5, 6], scored)
        scheduler.run(b=1, scored=1)
        assert batches[1].prompt_rows and run(batches[1]) is None
        five = torch.zeros(5, dtype=torch.int64)
        many = replace(batch.attention, counts=five.numpy().astype("int32") + 1)
        assert run(replace(batch, input_ids=five, attention=many)) is None


def test_memory_of_graphs_is_measured_and_left_out_of_the_blocks(
    start: Start, half_dir: Path, tapes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The null block, ten parts for the first graph, one for every other of either kind."""
    start(tapes)  # so that what follows finds the stand-ins
    tapes.made.clear()
    budget = 40 * 16384
    monkeypatch.setattr("blockyard.workers.memory.default_budget", lambda device: budget)
    monkeypatch.setattr("blockyard.workers.room.measure_peak", lambda run, device: 0)
    config = WorkerConfig(
        str(half_dir),
        96,
        device="cpu",
        dtype="bfloat16",
        backend="emulator",
        num_host_blocks=0,
        threads=1,
        max_running=8,
        max_step_tokens=16,
    )
    profile = ModelWorker(config, new_capturer=tapes).load()
    assert len(tapes.made) == 2
    assert profile.block_bytes == 16384
    assert profile.graph_bytes == 10_000 + 7 * 1000 - profile.block_bytes
    assert profile.max_blocks == (budget - profile.graph_bytes) // profile.block_bytes
    plain = ModelWorker(replace(config, cuda_graphs="off"), new_capturer=tapes)
    assert plain.load().graph_bytes == 0
    plain.allocate(4)
    assert plain._graphs is None and plain._cache is not None and len(plain._cache.pool) == 4


def test_why_there_are_none(start: Start, half_dir: Path, tapes: Any) -> None:
    def refusal(tapes: Any = None, **settings: Any) -> str | None:
        setup = start(tapes, **settings)._setup
        assert setup is not None
        return setup.refusal

    assert refusal(tapes) is None
    assert refusal() == "the device is cpu"
    assert refusal(tapes, cuda_graphs="off") == "they are switched off"
    assert refusal(tapes, backend="torch") == "attention is computed in plain torch"


def _note_rows(worker: ModelWorker) -> set[int]:
    """Rows of the steps that the model computes from now on."""
    rows: set[int] = set()
    model: Any = worker._loaded()
    forward = model.forward

    def noted(input_ids: torch.Tensor, *others: Any) -> torch.Tensor:
        rows.add(len(input_ids))
        logits: torch.Tensor = forward(input_ids, *others)
        return logits

    model.forward = noted
    return rows


class _Alone:
    """A transport whose peers add nothing."""

    def all_reduce(self, tensor: torch.Tensor) -> None:
        pass

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack((tensor, torch.full_like(tensor, -1e9)))

    def broadcast(self, tensor: torch.Tensor) -> None:
        pass
