"""Workers with a draft model, and requests of every kind that they serve."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from blockyard.scheduler.config import PreemptionPolicy, SchedulerConfig, Speculation
from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.plan import StepPlan
from blockyard.scheduler.request import FinishReason, RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig
from blockyard.workers.worker import ModelWorker

KINDS = (
    SamplingParams(max_tokens=30, temperature=0.0, logprobs=2),
    SamplingParams(max_tokens=30, temperature=1.3, top_p=0.9, seed=5, logprobs=0),
    SamplingParams(max_tokens=30, seed=6, frequency_penalty=1.5, repetition_penalty=1.2),
    SamplingParams(max_tokens=30, temperature=0.0, bad_words=((7,), (3, 9)), presence_penalty=1.0),
    SamplingParams(max_tokens=30, seed=8, stop_token_ids=tuple(range(0, 300, 11)), min_tokens=6),
    SamplingParams(max_tokens=30, seed=9, top_k=5, logit_bias=((4, 3.0),)),
)


@dataclass
class Served:
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    scores: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    steps: Counter[str] = field(default_factory=Counter)
    """In how many steps there was something of a kind."""
    ledger: GroupLedger | None = None

    @property
    def books(self) -> GroupLedger:
        assert self.ledger is not None
        return self.ledger


@pytest.fixture(scope="module")
def other_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the same vocabulary with a shape and thoughts of its own."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.3,
        eos_token_id=2,
        pad_token_id=2,
    )
    folder = tmp_path_factory.mktemp("other")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def make_worker(tiny_dir: Path) -> Callable[..., ModelWorker]:
    def make(
        draft: Path | None, blocks: int = 64, host_blocks: int = 0, **options: Any
    ) -> ModelWorker:
        config = WorkerConfig(
            str(tiny_dir),
            512,
            device="cpu",
            num_blocks=blocks,
            num_host_blocks=host_blocks,
            threads=1,
            draft_dir=str(draft) if draft is not None else None,
        )
        worker = ModelWorker(replace(config, **options))
        worker.load()
        worker.allocate(blocks, host_blocks)
        return worker

    return make


def _requests() -> list[RequestSpec]:
    """All kinds of sampling, then the same prompt twice more, once for three answers."""
    specs = [
        RequestSpec(
            str(index),
            tuple((index * 37 + place * 11) % 300 for place in range(9 + 9 * index)),
            how,
        )
        for index, how in enumerate(KINDS)
    ]
    again = specs[5].prompt_token_ids
    drawn = SamplingParams(max_tokens=25, seed=4, temperature=0.8)
    specs.append(RequestSpec("forked", again, drawn, num_choices=3))
    specs.append(RequestSpec("found", again, SamplingParams(max_tokens=20, temperature=0.0)))
    return specs


def _serve(
    worker: ModelWorker,
    blocks: int = 64,
    host_blocks: int = 0,
    policy: PreemptionPolicy = PreemptionPolicy.AUTO,
    after_step: Callable[[Scheduler], None] = lambda scheduler: None,
    specs: Sequence[RequestSpec] = (),
) -> Served:
    """The requests, two more of them with every step."""
    drafts = worker._draft is not None
    config = SchedulerConfig(
        256,
        max_running=8,
        max_step_tokens=64,
        preemption=policy,
        speculate=Speculation.DRAFT if drafts else Speculation.OFF,
    )
    scheduler = Scheduler(config, blocks, host_blocks)
    served = Served()
    waiting = list(specs) or _requests()
    while waiting or scheduler.has_work:
        for _ in waiting[:2]:
            scheduler.submit(waiting.pop(0), 0.0)
        if (plan := scheduler.plan(0.0)) is None:
            continue
        result = worker.execute(plan)
        for update in scheduler.commit(replace(result, compute_seconds=0.0), 0.0):
            assert update.finish_reason is not FinishReason.ERROR
            member = update.request_id, update.choice
            served.tokens.setdefault(member, []).extend(update.token_ids)
            scores = [entry.logprob for entry in update.logprobs]
            served.scores.setdefault(member, []).extend(scores)
        served.steps.update(_kinds(plan))
        scheduler.acknowledge(result.step)
        scheduler.check()
        after_step(scheduler)
    served.ledger = scheduler.ledger()
    return served


def _kinds(plan: StepPlan) -> list[str]:
    told = {
        "guesses": plan.guesses,
        "copies": plan.copies,
        "forks": plan.forks,
        "swaps": plan.swap_ins,
    }
    return [name for name, value in told.items() if value]


@pytest.fixture
def serve() -> Callable[..., Served]:
    """Serves requests, by default two of every kind with each step, and proves the books."""
    return _serve
