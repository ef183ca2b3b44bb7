"""The GPU's kernels under the real engine: emulated, they give the tokens of their torch twin.

Ranks are real processes; prefix hits, forks and swaps are part of every run.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from blockyard.cluster.engine import Engine
from blockyard.cluster.group_ranks import GroupRanks
from blockyard.cuda.emulator.build import missing_tools
from blockyard.scheduler.config import PreemptionPolicy, SchedulerConfig
from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams, TokenLogprobs
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig

CONTEXT, BLOCK_SIZE, NUM_BLOCKS = 128, 16, 8
PREFIX = list(range(20, 58))
PROMPTS = [PREFIX, [*PREFIX, 7, 9], [*PREFIX[:33], 3], [5], list(range(100, 117))]
FORKED = 2
"""The prompt that is answered twice."""

NEW_TOKENS = 16
NOISE = {"auto": 0.03, "fp8": 0.12}
"""What rounding may move a log probability by, through two layers: half precision in steps of
2^-10; with keys and values in float8 some tip over to the next of its 2^-4."""


@dataclass
class Answer:
    """One choice's tokens, and what the model thought of them."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


Answers = dict[tuple[str, int], Answer]


@pytest.fixture(scope="module")
def llama(save_model: Callable[[Any], Path]) -> Path:
    """Two layers; 3 KV heads of 2 query heads each, which two ranks share unevenly."""
    return save_model(
        LlamaConfig(
            vocab_size=301,
            hidden_size=96,
            intermediate_size=100,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=3,
            head_dim=32,
            max_position_embeddings=CONTEXT,
            eos_token_id=None,
        )
    )


async def serve(
    ranks: Sequence[Any], directory: Path, backend: str, kv_dtype: str
) -> tuple[Answers, GroupLedger]:
    """Each prompt's answers, by request and choice, and the books at the end."""
    configs = [
        WorkerConfig(
            str(directory),
            CONTEXT,
            device="cpu",
            dtype="float16",
            backend=backend,
            kv_dtype=kv_dtype,
            block_size=BLOCK_SIZE,
            num_blocks=NUM_BLOCKS,
            num_host_blocks=2 * NUM_BLOCKS,
            threads=1,
            max_step_tokens=32,
            rank=rank,
            world_size=len(ranks),
        )
        for rank in range(len(ranks))
    ]
    group = await GroupRanks(ranks, configs, ["here"] * len(ranks)).start()
    scheduler = Scheduler(
        SchedulerConfig(
            CONTEXT,
            block_size=BLOCK_SIZE,
            max_running=8,
            max_step_tokens=32,
            preemption=PreemptionPolicy.SWAP,
        ),
        NUM_BLOCKS,
        num_host_blocks=2 * NUM_BLOCKS,
    )
    answers: Answers = {}

    def deliver(updates: list[RequestUpdate]) -> None:
        for update in updates:
            answer = answers.setdefault((update.request_id, update.choice), Answer())
            answer.tokens.extend(update.token_ids)
            answer.logprobs.extend(update.logprobs)

    engine = Engine(scheduler, group, deliver)
    for number, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, logprobs=2)
        choices = 2 if number == FORKED else 1
        engine.submit(RequestSpec(str(number), tuple(prompt), sampling, num_choices=choices))
        while number == 0 and await engine.step():  # the others find its blocks
            engine.check()
    while await engine.step():
        engine.check()
    await group.close()
    return answers, engine.ledger()


def equal_tokens(answer: Answer, expected: Answer, noise: float) -> int:
    """How many tokens are equal before the first that differs, which must be a tie.

    Before and at that place both must have thought the same of their tokens, within noise.
    """
    for at, (got, wanted) in enumerate(zip(answer.logprobs, expected.logprobs, strict=True)):
        if answer.tokens[at] != expected.tokens[at]:
            best, second = wanted.top_logprobs
            assert best - second < noise, f"token {at} differs, {best - second} ahead"
            return at
        assert abs(got.logprob - wanted.logprob) < noise
    return len(expected.tokens)


@pytest.mark.slow
@pytest.mark.timeout(900)  # on a machine that is busy otherwise
@pytest.mark.parametrize(("ranks", "kv_dtype"), [(1, "auto"), (2, "auto"), (2, "fp8")])
def test_emulated_kernels_give_the_tokens_of_torch(
    rank_pool: Any, llama: Path, ranks: int, kv_dtype: str
) -> None:
    missing = missing_tools()
    if missing is not None:
        pytest.skip(f"no emulation of kernels: {missing}")
    expected, _ = asyncio.run(serve(rank_pool.take(ranks), llama, "torch", kv_dtype))
    answers, ledger = asyncio.run(serve(rank_pool.take(ranks), llama, "emulator", kv_dtype))
    assert sorted(answers) == [("0", 0), ("1", 0), ("2", 0), ("2", 1), ("3", 0), ("4", 0)]
    assert {len(answer.tokens) for answer in answers.values()} == {NEW_TOKENS}
    equal = {key: equal_tokens(answers[key], expected[key], NOISE[kv_dtype]) for key in expected}
    assert sum(equal.values()) >= len(equal) * NEW_TOKENS / 2, equal
    assert ledger.preempted.swapped > 0
    assert ledger.prefix_hit_tokens > 0
    assert ledger.copied_blocks > 0
