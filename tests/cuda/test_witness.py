"""A witness that reads through the kernels: real plans, real block tables, emulated attention.

Its one layer turns a token and its position into query, key and value, and its next token is
sampled from the attention over all before it. A wrong block, a missed copy or a lost swap changes
what is read; the oracle knows only each request's tokens and computes densely in float64.
"""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from blockyard.cluster.engine import Engine
from blockyard.cluster.local_group import LocalGroup
from blockyard.cuda.backend import AttentionForm
from blockyard.cuda.emulator.build import EmulatedLibrary
from blockyard.cuda.kernel_backend import KernelBackend
from blockyard.scheduler.config import PreemptionPolicy, SchedulerConfig
from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.batch import BatchBuilder
from blockyard.workers.config import WorkerProfile
from blockyard.workers.kv_cache import KVCache
from blockyard.workers.kv_layers import KVGeometry
from blockyard.workers.sampler import SampleRow, sample

CPU = torch.device("cpu")
VOCAB, CONTEXT, BLOCK_SIZE, NUM_BLOCKS = 61, 160, 16, 14
HEADS, KV_HEADS, DIM = 2, 1, 16
FORM = AttentionForm(DIM**-0.5)
MOST_TIES = 0.02
"""Share of tokens that noise of half precision may decide, where two scores nearly meet."""


class AttentionWitness:
    """An `Executor` whose model is one attention layer over tables of random vectors."""

    def __init__(self, backend: KernelBackend) -> None:
        random = torch.Generator().manual_seed(3)
        self.tokens = torch.randn(VOCAB, 3 * HEADS, DIM, generator=random)
        self.positions = torch.randn(CONTEXT, 3 * HEADS, DIM, generator=random)
        self.scores = torch.randn(VOCAB, HEADS * DIM, generator=random)
        self.rows: dict[tuple[int, int, int], SampleRow] = {}
        self._backend = backend

    def load(self) -> WorkerProfile:
        return WorkerProfile(NUM_BLOCKS, 1, 0, 0, "cpu", "float16", 2 * NUM_BLOCKS)

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        geometry = KVGeometry(1, KV_HEADS, DIM, BLOCK_SIZE, torch.float16)
        self._cache = KVCache(geometry, num_blocks, CPU, num_host_blocks)
        self._cache.blocks.fill_(float("nan"))
        self._cache.host_blocks.fill_(float("nan"))
        self._batches = BatchBuilder(num_blocks, BLOCK_SIZE, VOCAB, CPU)

    def project(self, ids: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values, float16, of tokens at positions."""
        rows = (self.tokens[ids] + self.positions[positions]).half()
        return rows[:, :HEADS], rows[:, HEADS : HEADS + KV_HEADS], rows[:, -KV_HEADS:]

    def execute(self, plan: StepPlan) -> StepResult:
        batch = self._batches.apply(plan)
        self._cache.move(plan.swap_outs, plan.copies, plan.swap_ins)
        if batch is None:
            return StepResult(plan.step, ())
        queries, keys, values = self.project(batch.input_ids, batch.positions)
        step = self._backend.begin(batch.attention)
        kv = self._cache.layer(0)
        step.write(kv, keys, values)
        attended = step.attend(kv, queries, FORM)[batch.sample_tokens]
        logits = attended.float().flatten(1) @ self.scores.T
        if batch.sample_logits is not None:
            logits = logits[batch.sample_logits]
        self.rows |= {row.noise_key: row for row in batch.sample_rows}
        return StepResult(plan.step, sample(logits, batch.sample_rows).token_ids)

    def oracle(self, tokens: list[int], row: SampleRow) -> int:
        """The token that follows `tokens`, without blocks, in float64."""
        ids = torch.tensor(tokens)
        queries, keys, values = self.project(ids, torch.arange(len(ids)))
        folded = queries[-1].double().view(KV_HEADS, -1, DIM)
        scores = torch.einsum("hgd,thd->hgt", folded, keys.double()) * FORM.scale
        attended = torch.einsum("hgt,thd->hgd", scores.softmax(-1), values.double())
        logits = attended.reshape(1, -1) @ self.scores.double().T
        return sample(logits.float(), [row]).token_ids[0]


async def serve(
    witness: AttentionWitness, specs: list[RequestSpec], policy: PreemptionPolicy
) -> tuple[dict[tuple[str, int], list[int]], GroupLedger]:
    group = LocalGroup(witness)
    await group.load()
    config = SchedulerConfig(
        CONTEXT, block_size=BLOCK_SIZE, max_running=8, max_step_tokens=40, preemption=policy
    )
    answers: dict[tuple[str, int], list[int]] = {}

    def deliver(updates: list[RequestUpdate]) -> None:
        for update in updates:
            key = (update.request_id, update.choice)
            answers.setdefault(key, []).extend(update.token_ids)

    scheduler = Scheduler(config, NUM_BLOCKS, num_host_blocks=2 * NUM_BLOCKS)
    engine = Engine(scheduler, group, deliver)
    for number, spec in enumerate(specs):
        engine.submit(spec)
        for _ in range(3 * (number % 3)):  # they come while others are being served
            await engine.step()
            engine.check()
    while await engine.step():
        engine.check()
    await group.close()
    return answers, engine.ledger()


def traffic(seed: int) -> list[RequestSpec]:
    """Requests of which many begin alike, and some want several answers."""
    random = np.random.default_rng(seed)
    stem = random.integers(VOCAB, size=70).tolist()
    specs = []
    for number in range(9):
        shared = int(random.integers(70)) if random.random() < 0.7 else 0
        own = random.integers(VOCAB, size=int(random.integers(1, 30))).tolist()
        sampling = SamplingParams(
            max_tokens=int(random.integers(2, 30)), temperature=1.0, seed=1000 + number
        )
        choices = 3 if number % 4 == 1 else 1
        prompt = tuple([*stem[:shared], *own])
        specs.append(RequestSpec(str(number), prompt, sampling, num_choices=choices))
    return specs


@pytest.mark.parametrize(
    ("seed", "policy"),
    [
        (0, PreemptionPolicy.SWAP),
        (1, PreemptionPolicy.RECOMPUTE),
        (2, PreemptionPolicy.SWAP),
    ],
)
def test_every_token_is_the_oracles(
    emulated: EmulatedLibrary, seed: int, policy: PreemptionPolicy
) -> None:
    witness = AttentionWitness(KernelBackend(emulated, CPU, slots=8))
    specs = traffic(seed)
    answers, ledger = asyncio.run(serve(witness, specs, policy))
    total, parted = 0, []
    for spec in specs:
        for choice in range(spec.num_choices):
            tokens: list[Any] = list(spec.prompt_token_ids)
            for token in answers[spec.request_id, choice]:
                row = witness.rows[spec.sampling.seed, choice, len(tokens)]
                if witness.oracle(tokens, row) != token:
                    parted.append((spec.request_id, choice, len(tokens)))
                tokens.append(token)
                total += 1
            assert len(tokens) - len(spec.prompt_token_ids) == spec.sampling.max_tokens
    assert len(parted) <= MOST_TIES * total, (parted, total)
    assert ledger.prefix_hit_tokens > 0
    assert ledger.copied_blocks > 0
    lost = ledger.preempted
    assert (lost.swapped if policy is PreemptionPolicy.SWAP else lost.recomputed) > 0
