"""Guesses checked by a real model: the same tokens as without, whatever chooses them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.plan import PLACEHOLDER, StepPlan
from blockyard.scheduler.request import FinishReason, RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.batch import BatchBuilder
from blockyard.workers.fake import PlanRefused, WitnessWorker
from blockyard.workers.guesses import GuessedRow, reached
from blockyard.workers.handle_state import PlanError
from blockyard.workers.sampler import SampledTokens
from blockyard.workers.worker import ModelWorker

Outputs = dict[str, list[int]]
KINDS = (
    SamplingParams(max_tokens=30, temperature=0.0, logprobs=2),
    SamplingParams(max_tokens=30, temperature=1.3, top_p=0.9, seed=5, logprobs=0),
    SamplingParams(max_tokens=30, seed=6, frequency_penalty=1.5, repetition_penalty=1.2),
    SamplingParams(max_tokens=30, temperature=0.0, bad_words=((7,), (3, 9)), presence_penalty=1.0),
    SamplingParams(max_tokens=30, seed=8, stop_token_ids=tuple(range(0, 300, 11)), min_tokens=6),
    SamplingParams(max_tokens=30, seed=9, top_k=5, logit_bias=((4, 3.0),)),
)


class Remembered:
    """Guesses what was answered before, and every fourth token wrongly."""

    def __init__(self, outputs: Outputs) -> None:
        self.outputs = outputs

    def guess(self, request: Any, most: int) -> Sequence[int]:
        begin = request.num_output
        coming = self.outputs[request.request_id][begin : begin + most]
        return [t if (begin + n) % 4 else (t + 1) % 300 for n, t in enumerate(coming)]

    def learn(self, request: Any, num_guessed: int, num_true: int) -> None:
        pass

    def keep(self, requests: Sequence[Any]) -> None:
        pass


def _serve(
    worker: ModelWorker, guesser: Remembered | None
) -> tuple[Outputs, dict[str, list[float]], Scheduler]:
    """Six requests in a pool that is too small for them; tokens and log probabilities."""
    config = SchedulerConfig(256, block_size=16, max_running=6, max_step_tokens=64)
    scheduler = Scheduler(config, 12, guesser=guesser)
    for index, sampling in enumerate(KINDS):
        prompt = tuple((index * 37 + place * 11) % 300 for place in range(9 + 9 * index))
        scheduler.submit(RequestSpec(str(index), prompt, sampling), 0.0)
    tokens: Outputs = {}
    scores: dict[str, list[float]] = {}
    while (plan := scheduler.plan(0.0)) is not None:
        result = worker.execute(plan)
        for update in scheduler.commit(replace(result, compute_seconds=0.0), 0.0):
            assert update.finish_reason is not FinishReason.ERROR
            tokens.setdefault(update.request_id, []).extend(update.token_ids)
            found = [entry.logprob for entry in update.logprobs]
            assert len(found) in (0, len(update.token_ids))
            scores.setdefault(update.request_id, []).extend(found)
        scheduler.acknowledge(result.step)
        scheduler.check()
    return tokens, scores, scheduler


def test_checked_guesses_change_no_token_and_no_log_probability(
    make_tiny_worker: Callable[..., ModelWorker],
) -> None:
    plain, plain_scores, without = _serve(make_tiny_worker(12), None)
    tokens, scores, scheduler = _serve(make_tiny_worker(12), Remembered(plain))
    assert tokens == plain
    for name, found in plain_scores.items():
        assert scores[name] == pytest.approx(found, abs=1e-4)
    ledger = scheduler.ledger()
    assert ledger.preemptions and 0 < ledger.right_guesses < ledger.guessed_tokens
    assert ledger.step < 0.7 * without.ledger().step


def test_failures_behind_a_wrong_guess_are_nobodys() -> None:
    sampled = SampledTokens((5, 6, 7, 8, 9), failed=(1, 3, 4), emptied=(1, 3))
    wrong = GuessedRow(1, first=0, position=10, token_ids=(4, 6))
    found = reached(sampled, [wrong])
    assert (found.failed, found.emptied) == ((3, 4), (3,))
    right = GuessedRow(1, first=0, position=10, token_ids=(5, 6))
    found = reached(sampled, [right])
    assert found.failed == (1, 3, 4)
    assert found.token_ids == (5, -1, 7, 8, 9), "no guess equals what failed"


def _guessing(plan: Callable[..., StepPlan]) -> StepPlan:
    first = plan(1, admitted=(1,), grants={1: (5, 3)}, rows={1: (0, (7, 8, 20, 21))})
    return replace(first, guesses=(2,))


def test_a_rank_that_does_not_sample_goes_on_wherever_right_guesses_end(
    plan: Callable[..., StepPlan],
) -> None:
    for start, fine in ((1, False), (2, True), (3, True), (4, True), (5, False)):
        builder = BatchBuilder(9, 4, 300, torch.device("cpu"))
        batch = builder.apply(_guessing(plan))
        assert batch is not None
        assert batch.sample_tokens.tolist() == [1, 2, 3]
        assert [row.position for row in batch.sample_rows] == [2, 3, 4]
        assert batch.guessed == (GuessedRow(1, 0, 2, (20, 21), row=0, place=2),)
        following = plan(2, rows={1: (start, (9,))})
        if fine:
            builder.apply(following)
        else:
            with pytest.raises(PlanError, match="handle 1 from position"):
                builder.apply(following)


def test_who_samples_knows_where_right_guesses_end(plan: Callable[..., StepPlan]) -> None:
    builder = BatchBuilder(9, 4, 300, torch.device("cpu"))
    batch = builder.apply(_guessing(plan))
    assert batch is not None
    builder.note_sampled(batch, (20, 99, 98))
    following = builder.apply(plan(2, rows={1: (3, (PLACEHOLDER,))}))
    assert following is not None and following.input_ids.tolist() == [99]


def test_the_witness_refuses_to_go_on_behind_a_wrong_guess(
    plan: Callable[..., StepPlan], make: Callable[..., WitnessWorker]
) -> None:
    worker = make()
    found = worker.execute(_guessing(plan)).token_ids
    assert len(found) == 3 and found[0] != 20
    with pytest.raises(PlanRefused, match="starts handle 1 at 3, it has 2"):
        worker.execute(plan(2, rows={1: (3, (9,))}))
