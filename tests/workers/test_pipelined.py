"""Plans made while the step before them runs: the real scheduler with a real model."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import PLACEHOLDER, StepPlan, StepResult
from blockyard.scheduler.request import FinishReason, RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.batch import BatchBuilder, FlatBatch
from blockyard.workers.fake import PlanRefused, WitnessWorker, witness_next_token
from blockyard.workers.handle_state import PlanError
from blockyard.workers.worker import ModelWorker

Planner = Callable[..., StepPlan]
Maker = Callable[..., WitnessWorker]
VOCAB = 50_000


def _serve(worker: ModelWorker, depth: int) -> dict[tuple[str, int], list[int]]:
    """All outputs of a few requests of every kind, in a pool too small for them."""
    config = SchedulerConfig(
        256, block_size=16, max_running=6, max_step_tokens=48, pipeline_depth=depth
    )
    scheduler = Scheduler(config, 16)
    prompts = {f"r{i}": tuple((i * 37 + j * 11) % 300 for j in range(9 + 17 * i)) for i in range(6)}
    kinds = (
        SamplingParams(max_tokens=24, temperature=0.0),
        SamplingParams(max_tokens=24, temperature=1.2, top_p=0.9, seed=5),
        SamplingParams(
            max_tokens=24, temperature=1.0, seed=6, stop_token_ids=tuple(range(0, 300, 9))
        ),
        SamplingParams(max_tokens=7, temperature=1.0, seed=7, min_tokens=3, stop_token_ids=(1, 2)),
    )
    for index, (name, prompt) in enumerate(prompts.items()):
        choices = 2 if index == 1 else 1
        spec = RequestSpec(name, prompt, kinds[index % len(kinds)], num_choices=choices)
        scheduler.submit(spec, 0.0)
    outputs: dict[tuple[str, int], list[int]] = {}
    results: list[StepResult] = []
    while scheduler.has_work or results:
        while scheduler.may_plan and (plan := scheduler.plan(0.0)) is not None:
            results.append(worker.execute(plan))
        result = results.pop(0)
        # Measured times steer preemptions, which would make the two runs differ.
        for update in scheduler.commit(replace(result, compute_seconds=0.0), 0.0):
            outputs.setdefault((update.request_id, update.choice), []).extend(update.token_ids)
            assert update.finish_reason is not FinishReason.ERROR
        scheduler.acknowledge(result.step)
        scheduler.check()
        if len(outputs.get(("r4", 0), ())) == 5:
            scheduler.abort("r4")
    assert scheduler.ledger().preemptions
    return outputs


def test_two_steps_in_flight_give_the_tokens_of_one(
    make_tiny_worker: Callable[..., ModelWorker],
) -> None:
    one, two = (_serve(make_tiny_worker(16), depth) for depth in (1, 2))
    assert one == two
    assert len(one) == 7 and len(one["r4", 0]) == 5


def _apply(builder: BatchBuilder, plan: StepPlan) -> FlatBatch:
    batch = builder.apply(plan)
    assert batch is not None
    return batch


def test_placeholders_are_filled_with_what_each_handle_sampled(plan: Planner) -> None:
    builder = BatchBuilder(9, 4, VOCAB, torch.device("cpu"))
    first = plan(
        1,
        admitted=(1, 2),
        grants={1: (5,), 2: (3,)},
        rows={1: (0, (7, 8)), 2: (0, (9,))},
        forks=((1, 3),),
    )
    batch = _apply(builder, first)
    builder.note_sampled(batch, (40, 50, 60))
    awaiting = plan(
        2, rows={2: (1, (PLACEHOLDER,)), 1: (2, (PLACEHOLDER,)), 3: (2, (PLACEHOLDER,))}
    )
    assert _apply(builder, awaiting).input_ids.tolist() == [50, 40, 60]


def test_a_placeholder_for_a_token_that_was_not_sampled_is_refused(
    plan: Planner, make: Maker, first: StepPlan
) -> None:
    unsampled = replace(first, samples=(False,))
    awaiting = plan(2, rows={1: (5, (PLACEHOLDER,))})
    builder = BatchBuilder(9, 4, VOCAB, torch.device("cpu"))
    _apply(builder, unsampled)
    with pytest.raises(PlanError, match="the token at 5 of handle 1, which was not sampled"):
        builder.apply(awaiting)
    worker = make()
    worker.execute(unsampled)
    with pytest.raises(PlanRefused, match="the token at 5 of handle 1"):
        worker.execute(awaiting)


def test_a_placeholder_is_the_newest_sample_and_no_older_one(
    plan: Planner, make: Maker, first: StepPlan
) -> None:
    worker = make()
    worker.execute(first)
    # A token that others know is computed, but nothing is sampled after it.
    worker.execute(replace(plan(2, rows={1: (5, (15,))}), samples=(False,)))
    with pytest.raises(PlanRefused, match="at 6 of handle 1, the one sampled last is at 5"):
        worker.execute(plan(3, rows={1: (6, (PLACEHOLDER,))}))


def test_the_witness_reads_its_own_sample_behind_a_placeholder(
    plan: Planner, make: Maker, first: StepPlan
) -> None:
    worker = make()
    (token,) = worker.execute(first).token_ids
    (following,) = worker.execute(plan(2, rows={1: (5, (PLACEHOLDER,))})).token_ids
    assert following == witness_next_token([10, 11, 12, 13, 14, token], VOCAB)


def test_a_placeholder_stands_alone_in_its_row(plan: Planner) -> None:
    with pytest.raises(AssertionError, match="handle 1 awaits a token beside others"):
        plan(2, rows={1: (5, (15, PLACEHOLDER))}).check()
