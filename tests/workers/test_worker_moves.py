"""Forks, copies and swaps in the real worker: the tokens are those of separate runs."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from blockyard.scheduler.plan import Admission, StepPlan
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.config import WorkerConfig
from blockyard.workers.handle_state import PlanError
from blockyard.workers.worker import ModelWorker

Planner = Callable[..., StepPlan]
Maker = Callable[..., ModelWorker]

CHOICES = {1: 0, 2: 2, 3: 3}
"""Handle: choice. `plan` gives a child the choice of its own number."""


@pytest.fixture(params=["auto", "int8", "fp8"])
def kv_dtype(request: pytest.FixtureRequest) -> str:
    """int8 blocks have scales, which move with their numbers; those of fp8 stay as they are."""
    return str(request.param)


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    rng = random.Random(11)
    return [rng.randrange(300) for _ in range(40)]


@pytest.fixture
def separate_runs(make_scheduler: Callable[..., Any]) -> Callable[[list[int], int], Any]:
    """Tokens of each choice, each run alone from its own prefill."""

    def generate(prompt: list[int], count: int) -> dict[int, list[int]]:
        outputs = {}
        for handle, choice in CHOICES.items():
            scheduler = make_scheduler()
            scheduler.add("alone", prompt, SamplingParams(choice=choice))
            for _ in range(count):
                scheduler.run(alone=64)
            outputs[handle] = scheduler.output("alone")
        return outputs

    return generate


def _poisoned(make_tiny_worker: Maker, num_host_blocks: int = 0) -> ModelWorker:
    worker = make_tiny_worker(num_blocks=12, num_host_blocks=num_host_blocks)
    _poison(worker)
    worker._cache.host_pool.fill_(0xFF)  # type: ignore[union-attr]
    return worker


def _poison(worker: ModelWorker) -> None:
    worker._cache.pool.fill_(0xFF)  # type: ignore[union-attr]  # NaN in every float dtype


class _Family:
    """A parent and its children, all in every step."""

    def __init__(self, worker: ModelWorker, plan: Planner, prompt: list[int]) -> None:
        self.worker = worker
        self.plan = plan
        self.prompt = prompt
        self.outputs: dict[int, list[int]] = {1: [], 2: [], 3: []}
        self.step = 0

    def prefill(self) -> None:
        """The prompt in blocks 4, 9 and 2, the last of them half full; then two forks.

        A stranger's row comes before, and stays in the tables for good.
        """
        self.step += 1
        first = self.plan(
            1,
            admitted=(0, 1),
            grants={0: (11,), 1: (4, 9, 2)},
            rows={0: (0, (7, 7, 7)), 1: (0, tuple(self.prompt))},
            forks=((1, 2), (1, 3)),
        )
        self.book((1, 2, 3), self.worker.execute(first).token_ids[1:])

    def decode(self, count: int, **first: Any) -> None:
        for _ in range(count):
            self.step += 1
            rows = {
                handle: (len(self.prompt) + len(tokens) - 1, tuple(tokens[-1:]))
                for handle, tokens in self.outputs.items()
            }
            result = self.worker.execute(self.plan(self.step, rows=rows, **first))
            assert result.errors == ()
            self.book(tuple(rows), result.token_ids)
            first = {}

    def book(self, handles: tuple[int, ...], token_ids: tuple[int, ...]) -> None:
        for handle, token in zip(handles, token_ids, strict=True):
            self.outputs[handle].append(token)


def test_forks_equal_separate_runs(
    make_tiny_worker: Maker, plan: Planner, prompt: list[int], separate_runs: Any
) -> None:
    family = _Family(_poisoned(make_tiny_worker), plan, prompt)
    family.prefill()
    # Handle 2 keeps the half full block; the others write to copies of it.
    family.decode(7, replaced=((1, 2, 7), (3, 2, 0)), copies=((2, 7), (2, 0)))
    expected = separate_runs(prompt, 8)
    assert family.outputs == expected
    assert len({tuple(tokens) for tokens in expected.values()}) == 3


def test_forks_equal_separate_runs_through_a_swap(
    make_tiny_worker: Maker, plan: Planner, prompt: list[int], separate_runs: Any
) -> None:
    worker = _poisoned(make_tiny_worker, num_host_blocks=6)
    family = _Family(worker, plan, prompt)
    family.prefill()
    family.decode(3, replaced=((1, 2, 7), (3, 2, 0)), copies=((2, 7), (2, 0)))
    family.step += 1
    saved = plan(family.step, forgotten=(1, 2, 3), out={4: 0, 9: 1, 7: 5, 2: 3, 0: 2})
    result = worker.execute(saved)
    assert result.token_ids == ()
    assert result.copy_seconds > 0
    _poison(worker)
    # Back elsewhere, the shared blocks once, under new handles with the old choices.
    sampling = {handle + 3: SamplingParams(choice=choice) for handle, choice in CHOICES.items()}
    family.outputs = {handle + 3: tokens for handle, tokens in family.outputs.items()}
    family.step += 1
    worker.execute(
        replace(
            plan(
                family.step,
                grants={4: (10, 3, 1), 5: (10, 3, 5), 6: (10, 3, 8)},
                back={0: 10, 1: 3, 5: 1, 3: 5, 2: 8},
            ),
            admitted=tuple(Admission(handle, sampling[handle], 40) for handle in sampling),
        )
    )
    family.decode(4)
    expected = separate_runs(prompt, 8)
    assert family.outputs == {handle + 3: tokens for handle, tokens in expected.items()}


def test_a_block_saved_and_taken_over_in_one_plan(
    make_tiny_worker: Maker, plan: Planner, prompt: list[int], separate_runs: Any
) -> None:
    worker = _poisoned(make_tiny_worker, num_host_blocks=3)
    family = _Family(worker, plan, prompt)
    family.step = 1
    first = plan(1, admitted=(1,), grants={1: (4, 9, 2)}, rows={1: (0, tuple(prompt))})
    family.outputs = {1: list(worker.execute(first).token_ids)}
    other = tuple(range(35))
    worker.execute(
        plan(
            2,
            forgotten=(1,),
            admitted=(2,),
            grants={2: (2, 4, 9)},
            rows={2: (0, other)},
            out={4: 1, 9: 2, 2: 0},
        )
    )
    # And the other way about: the second goes out of the blocks that the first comes back to.
    back = plan(
        3,
        forgotten=(2,),
        admitted=(3,),
        grants={3: (9, 4, 2)},
        back={1: 9, 2: 4, 0: 2},
        rows={3: (40, (family.outputs[1][0],))},
    )
    family.outputs = {3: [family.outputs[1][0], *worker.execute(back).token_ids]}
    family.step = 3
    family.decode(2)
    assert family.outputs[3] == separate_runs(prompt, 4)[1]


def test_without_a_swap_no_time_is_booked_for_it(
    make_tiny_worker: Maker, plan: Planner, prompt: list[int]
) -> None:
    worker = make_tiny_worker()
    result = worker.execute(
        plan(1, admitted=(1,), grants={1: (4, 9, 2)}, rows={1: (0, tuple(prompt))})
    )
    assert result.copy_seconds == 0.0
    assert result.compute_seconds > 0.0


def test_moves_outside_the_pools_are_refused(make_tiny_worker: Maker, plan: Planner) -> None:
    worker = make_tiny_worker(num_blocks=4)
    with pytest.raises(ValueError, match="swapped out to block 0; the pools have 4 and 0"):
        worker.execute(plan(1, out={1: 0}))
    with pytest.raises(PlanError, match="handle 9, which is not known"):
        worker.execute(plan(2, replaced=((9, 0, 1),)))


def test_rates_are_measured_and_pools_sized(tiny_dir: Any) -> None:
    config = WorkerConfig(
        model_dir=str(tiny_dir), max_context_tokens=128, device="cpu", num_blocks=20, threads=1
    )
    profile = ModelWorker(config).load()
    assert profile.max_host_blocks == 20
    assert profile.prefill_tokens_per_second > 0
    assert profile.link_bytes_per_second > 2**20
    unswapped = ModelWorker(replace(config, num_host_blocks=0)).load()
    assert (unswapped.max_host_blocks, unswapped.link_bytes_per_second) == (0, 0.0)
    worker = ModelWorker(replace(config, num_host_blocks=7))
    assert worker.load().max_host_blocks == 7
    worker.allocate(20, 7)
    assert worker._cache is not None
    assert worker._cache.host_blocks.shape == torch.Size((7, *worker._cache.blocks.shape[1:]))
