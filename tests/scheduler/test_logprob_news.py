"""Log probabilities reach whom they are of, each once, through chunks and preemptions."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from blockyard.scheduler.config import PreemptionPolicy, SchedulerConfig
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams, TokenLogprobs
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig
from blockyard.workers.fake import WitnessWorker, witness_generate

VOCABULARY = 97
PROMPT = tuple(range(20, 53))  # 33 tokens


def _certain(token: int) -> TokenLogprobs:
    return TokenLogprobs(0.0, 1, (token,), (0.0,))


@pytest.fixture
def run() -> Callable[..., list[RequestUpdate]]:
    """Serves requests to their end on a witness; everything that clients are told.

    Each of `late` comes in a step of its own.
    """

    def run(
        specs: list[RequestSpec], num_blocks: int, *late: tuple[int, RequestSpec]
    ) -> list[RequestUpdate]:
        scheduler = Scheduler(
            SchedulerConfig(
                max_context_tokens=256,
                block_size=4,
                max_running=6,
                max_step_tokens=8,
                preemption=PreemptionPolicy.RECOMPUTE,
            ),
            num_blocks,
        )
        worker = WitnessWorker(WorkerConfig("", 256, block_size=4), VOCABULARY)
        worker.allocate(num_blocks)
        for spec in specs:
            scheduler.submit(spec, 0.0)
        told: list[RequestUpdate] = []
        for now in range(2000):
            for step, spec in late:
                if step == now:
                    scheduler.submit(spec, float(now))
            plan = scheduler.plan(float(now))
            if plan is None:
                break
            told += scheduler.commit(worker.execute(plan), float(now))
            scheduler.acknowledge(plan.step)
            scheduler.check()
        return told

    return run


def _of(told: list[RequestUpdate], request_id: str, choice: int = 0) -> list[RequestUpdate]:
    return [u for u in told if (u.request_id, u.choice) == (request_id, choice)]


def test_each_token_of_a_prompt_is_told_once_however_often_it_is_computed(
    run: Callable[..., list[RequestUpdate]],
) -> None:
    spec = RequestSpec("a", PROMPT, SamplingParams(16, prompt_logprobs=1, logprobs=2))
    # Others need its blocks: once in the middle of its prompt, once in that of its answer.
    late = [
        (when, RequestSpec(f"urgent-{when}", (when, *PROMPT[1:]), SamplingParams(8), priority=1))
        for when in (3, 25)
    ]
    told = run([spec], 14, *late)
    timings = _of(told, "a")[-1].timings
    assert timings is not None
    assert timings.preemptions == 2
    news = _of(told, "a")
    scored = [entry for update in news for entry in update.prompt_logprobs]
    assert scored == [_certain(token) for token in PROMPT[1:]]
    tokens = [token for update in news for token in update.token_ids]
    assert tokens == witness_generate(PROMPT, 16, VOCABULARY)
    assert [e for u in news for e in u.logprobs] == [_certain(token) for token in tokens]
    assert not any(u.logprobs or u.prompt_logprobs for u in told if u.request_id != "a")


def test_a_scored_prompt_is_computed_whole_when_others_have_left_it_in_memory(
    run: Callable[..., list[RequestUpdate]],
) -> None:
    scored = RequestSpec("b", PROMPT, SamplingParams(2, prompt_logprobs=1))
    told = run([replace(scored, request_id="a", sampling=SamplingParams(2)), scored], 64)
    news = _of(told, "b")
    assert news[-1].cached_tokens == 0
    assert sum(len(update.prompt_logprobs) for update in news) == len(PROMPT) - 1


def test_choices_get_their_own(run: Callable[..., list[RequestUpdate]]) -> None:
    spec = RequestSpec("a", PROMPT, SamplingParams(5, logprobs=1), num_choices=3)
    told = run([spec], 64)
    for choice in range(3):
        news = _of(told, "a", choice)
        tokens = [token for update in news for token in update.token_ids]
        assert tokens == witness_generate(PROMPT, 5, VOCABULARY, choice=choice)
        assert [e for u in news for e in u.logprobs] == [_certain(token) for token in tokens]
