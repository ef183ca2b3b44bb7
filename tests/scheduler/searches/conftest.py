"""A scheduler and a witness that search, stepped by hand, and a search on paper beside them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from blockyard.scheduler.config import PreemptionPolicy, SchedulerConfig
from blockyard.scheduler.plan import StepResult
from blockyard.scheduler.request import FinishReason, RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig
from blockyard.workers.fake import WitnessWorker, witness_generate, witness_likeliest

VOCAB = 97


def on_paper(spec: RequestSpec) -> list[tuple[int, ...]]:
    """The answers of a search that keeps whole sequences and no blocks; sums are in float32."""
    sampling = spec.sampling
    width, stops, most = sampling.beam_width, sampling.stop_token_ids, sampling.max_tokens or 0
    running: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, most + 1):
        pool = []
        for score, tokens in running:
            row = witness_likeliest([*spec.prompt_token_ids, *tokens], VOCAB, width + len(stops))
            for token, logprob in zip(row.top_ids, row.top_logprobs, strict=True):
                if length >= sampling.min_tokens or token not in stops:
                    pool.append((float(np.float32(score + logprob)), (*tokens, token)))
        pool.sort(key=lambda entry: -entry[0])
        ends = [tokens[-1] in stops or length == most for _, tokens in pool]
        for (score, tokens), end in zip(pool[:width], ends, strict=False):
            if end:
                ended.append((score / length**sampling.length_penalty, tokens))
        ended = sorted(ended, key=lambda entry: -entry[0])[:width]
        running = [entry for entry, end in zip(pool, ends, strict=True) if not end][:width]
        full = len(ended) == width
        if not running or (full and sampling.early_stopping):
            break
        if full and running[0][0] / length**sampling.length_penalty <= ended[-1][0]:
            break
    return [tokens for _, tokens in ended]


@dataclass
class Yard:
    """A scheduler and a witness, stepped by hand; the books are proved after every action."""

    num_blocks: int = 60
    depth: int = 1
    policy: PreemptionPolicy = PreemptionPolicy.AUTO
    num_host_blocks: int = 0
    max_running: int = 8
    now: float = 0.0
    specs: dict[str, RequestSpec] = field(default_factory=dict)
    ended: dict[str, dict[int, RequestUpdate]] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    computed: int = 0

    def __post_init__(self) -> None:
        config = SchedulerConfig(
            256, 4, self.max_running, 24, 64, self.policy, pipeline_depth=self.depth
        )
        self.scheduler = Scheduler(config, self.num_blocks, self.num_host_blocks)
        self.renew()

    def renew(self) -> None:
        """A worker that has seen nothing yet."""
        self.worker = WitnessWorker(WorkerConfig("", 256, block_size=4), VOCAB)
        self.worker.allocate(self.num_blocks, self.num_host_blocks)
        self.under_way: list[StepResult] = []

    def submit(self, name: str, prompt: list[int], width: int = 1, **options: Any) -> RequestSpec:
        sampling = SamplingParams(temperature=0.0, beam_width=width, **options)
        spec = RequestSpec(name, tuple(prompt), sampling, num_choices=width)
        self.scheduler.submit(spec, self.now)
        self.specs[name], self.tokens[name] = spec, []
        return spec

    def plan(self) -> bool:
        self.now += 1.0
        plan = self.scheduler.plan(self.now) if self.scheduler.may_plan else None
        if plan is None:
            return False
        self.computed += len(plan.token_ids)
        result = self.worker.execute(plan)
        self.under_way.append(replace(result, compute_seconds=0.0, copy_seconds=0.0))
        self.scheduler.check()
        return True

    def commit(self, broken: Callable[[StepResult], StepResult] = lambda result: result) -> None:
        result = self.under_way.pop(0)
        for update in self.scheduler.commit(broken(result), self.now):
            name = update.request_id
            if self.specs[name].sampling.searches:
                assert update.finish_reason is not None, "a beam is told of"
            self.tokens[name].extend(update.token_ids)
            if update.finish_reason is not None:
                told = self.ended.setdefault(name, {})
                assert update.choice not in told
                told[update.choice] = update
        self.scheduler.check()
        self.scheduler.acknowledge(result.step)
        self.scheduler.check()

    def step(self) -> bool:
        while self.plan():
            pass
        if not self.under_way:
            return False
        self.commit()
        return True

    def finish(self) -> None:
        """Run to the end; every answer must be the one on paper, and no block be held."""
        while self.step():
            pass
        assert not self.scheduler.has_work
        for name, told in self.ended.items():
            spec = self.specs[name]
            if spec.sampling.searches:
                found = on_paper(spec)
                for choice, update in told.items():
                    assert update.token_ids == found[choice], (name, choice)
                    stopped = update.token_ids[-1] in spec.sampling.stop_token_ids
                    wanted = FinishReason.STOP if stopped else FinishReason.LENGTH
                    assert update.finish_reason is wanted
            else:
                most = spec.sampling.max_tokens or 0
                assert self.tokens[name] == witness_generate(spec.prompt_token_ids, most, VOCAB)
        blocks = self.scheduler.ledger().blocks
        assert blocks.free + blocks.cached == self.num_blocks


@pytest.fixture
def make_yard() -> type[Yard]:
    """Its class: tests cannot import it from here."""
    return Yard


@pytest.fixture
def search_on_paper() -> Callable[[RequestSpec], list[tuple[int, ...]]]:
    return on_paper
