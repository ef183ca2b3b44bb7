"""A tiny random Llama on disk, witnesses, and steps made by hand."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from blockyard.cuda.backend import TokenKernels
from blockyard.scheduler.plan import (
    Admission,
    BlockCopy,
    BlockGrant,
    Fork,
    Replacement,
    StepPlan,
    StepResult,
)
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.config import WorkerConfig
from blockyard.workers.cpu.compiler import NativeUnavailable
from blockyard.workers.cpu.library import load_library
from blockyard.workers.cpu.token_kernels import NativeTokens
from blockyard.workers.fake import WitnessWorker
from blockyard.workers.worker import ModelWorker


@dataclass
class RecordingProgress:
    stages: list[tuple[str, int | None]] = field(default_factory=list)
    done: int = 0

    def stage(self, name: str, total_bytes: int | None) -> None:
        self.stages.append((name, total_bytes))
        self.done = 0

    def advance(self, num_bytes: int) -> None:
        self.done += num_bytes


@pytest.fixture
def progress() -> RecordingProgress:
    return RecordingProgress()


@pytest.fixture(scope="session")
def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.3,  # wide, so that no two best scores are close
        tie_word_embeddings=False,
        eos_token_id=2,
        pad_token_id=2,
    )
    model = LlamaForCausalLM(config)
    model.train(False)
    return model


@pytest.fixture(scope="session")
def tiny_dir(tiny_llama: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_llama.save_pretrained(folder)
    return folder


@pytest.fixture
def kv_dtype() -> str:
    """What workers of `make_tiny_worker` keep KV in; modules put their own in its place."""
    return "auto"


@pytest.fixture
def make_tiny_worker(tiny_dir: Path, kv_dtype: str) -> Callable[..., ModelWorker]:
    def make(num_blocks: int = 64, block_size: int = 16, num_host_blocks: int = 0) -> ModelWorker:
        config = WorkerConfig(
            model_dir=str(tiny_dir),
            max_context_tokens=512,
            device="cpu",
            kv_dtype=kv_dtype,
            backend="torch" if kv_dtype == "fp8" else "auto",  # no CPU path reads it
            block_size=block_size,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            threads=1,
        )
        worker = ModelWorker(config)
        worker.load()
        worker.allocate(num_blocks, num_host_blocks)
        return worker

    return make


class HandScheduler:
    """Plans without policy: the test says who computes how much, this keeps blocks and counts."""

    def __init__(self, worker: ModelWorker, num_blocks: int, block_size: int) -> None:
        self.worker = worker
        self.block_size = block_size
        # Neighbours in a table are far apart in the pool.
        self.free = [*range(0, num_blocks, 2), *range(1, num_blocks, 2)]
        self.tokens: dict[str, list[int]] = {}
        self.step = 0
        self._prompt_tokens: dict[str, int] = {}
        self._sampling: dict[str, SamplingParams] = {}
        self._handles: dict[str, int] = {}
        self._tables: dict[str, list[int]] = {}
        self._written: dict[str, int] = {}
        self._next_handle = 1
        self._forgotten: list[int] = []

    def add(self, name: str, prompt: list[int], sampling: SamplingParams | None = None) -> None:
        self.tokens[name] = list(prompt)
        self._prompt_tokens[name] = len(prompt)
        self._sampling[name] = sampling or SamplingParams(temperature=0.0)
        self._written[name] = 0

    def output(self, name: str) -> list[int]:
        return self.tokens[name][self._prompt_tokens[name] :]

    def pending(self, name: str) -> int:
        return len(self.tokens[name]) - self._written[name]

    def preempt(self, name: str) -> None:
        self.free.extend(self._tables.pop(name))
        self._forgotten.append(self._handles.pop(name))
        self._written[name] = 0

    def run(self, **wanted: int) -> StepResult:
        """One step in which each named request computes at most so many of its tokens."""
        self.step += 1
        admitted, grants, handles, starts, counts, samples = [], [], [], [], [], []
        token_ids: list[int] = []
        sampled: list[str] = []
        for name, most in wanted.items():
            start = self._written[name]
            count = min(most, self.pending(name))
            end = start + count
            if name not in self._handles:
                self._handles[name] = self._next_handle
                self._next_handle += 1
                self._tables[name] = []
                sampling = self._sampling[name]
                known = tuple(self.tokens[name]) if sampling.reads_history else ()
                admitted.append(
                    Admission(self._handles[name], sampling, self._prompt_tokens[name], known)
                )
            short = -(-end // self.block_size) - len(self._tables[name])
            if short > 0:
                block_ids = tuple(self.free.pop(0) for _ in range(short))
                self._tables[name].extend(block_ids)
                grants.append(BlockGrant(self._handles[name], block_ids))
            handles.append(self._handles[name])
            starts.append(start)
            counts.append(count)
            samples.append(end == len(self.tokens[name]))
            token_ids.extend(self.tokens[name][start:end])
            self._written[name] = end
            if samples[-1]:
                sampled.append(name)
        plan = StepPlan(
            step=self.step,
            forgotten=tuple(self._forgotten),
            admitted=tuple(admitted),
            grants=tuple(grants),
            handles=tuple(handles),
            starts=tuple(starts),
            counts=tuple(counts),
            samples=tuple(samples),
            token_ids=tuple(token_ids),
        )
        self._forgotten.clear()
        result = self.worker.execute(plan)
        for name, token in zip(sampled, result.token_ids, strict=True):
            self.tokens[name].append(token)
        return result


@pytest.fixture(scope="session")
def by_hand() -> type[HandScheduler]:
    """Drives any worker."""
    return HandScheduler


@pytest.fixture
def make_scheduler(
    make_tiny_worker: Callable[..., ModelWorker],
) -> Callable[..., HandScheduler]:
    def make(num_blocks: int = 64, block_size: int = 16) -> HandScheduler:
        return HandScheduler(make_tiny_worker(num_blocks, block_size), num_blocks, block_size)

    return make


@pytest.fixture(scope="session")
def greedy_reference(tiny_llama: LlamaForCausalLM) -> Callable[[list[int], int], list[int]]:
    """Greedy continuation by transformers alone, one full pass a token."""

    def generate(prompt: list[int], count: int) -> list[int]:
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(count):
                logits = tiny_llama(input_ids=torch.tensor([tokens]), use_cache=False).logits
                tokens.append(int(logits[0, -1].argmax()))
        return tokens[len(prompt) :]

    return generate


def _witness(num_blocks: int = 8, num_host_blocks: int = 4) -> WitnessWorker:
    worker = WitnessWorker(WorkerConfig("", 64, block_size=4, num_blocks=num_blocks), 50_000)
    worker.load()
    worker.allocate(num_blocks, num_host_blocks)
    return worker


def _plan(
    step: int,
    *,
    forgotten: tuple[int, ...] = (),
    admitted: tuple[int, ...] = (),
    grants: dict[int, tuple[int, ...]] | None = None,
    rows: dict[int, tuple[int, tuple[int, ...]]] | None = None,
    forks: tuple[tuple[int, int], ...] = (),
    replaced: tuple[tuple[int, int, int], ...] = (),
    out: dict[int, int] | None = None,
    copies: tuple[tuple[int, int], ...] = (),
    back: dict[int, int] | None = None,
) -> StepPlan:
    """A plan from rows of handle: (start, tokens), every one sampled.

    `forks` are (parent, child), the child's number being its choice; moves are source:
    destination, `replaced` handle, index, block.
    """
    rows = rows or {}
    return StepPlan(
        step=step,
        forgotten=forgotten,
        admitted=tuple(Admission(handle, SamplingParams(), 1) for handle in admitted),
        grants=tuple(BlockGrant(handle, blocks) for handle, blocks in (grants or {}).items()),
        handles=tuple(rows),
        starts=tuple(start for start, _ in rows.values()),
        counts=tuple(len(tokens) for _, tokens in rows.values()),
        samples=(True,) * len(rows),
        token_ids=tuple(token for _, tokens in rows.values() for token in tokens),
        forks=tuple(
            Fork(parent, child, SamplingParams(choice=child), 1) for parent, child in forks
        ),
        replacements=tuple(Replacement(*entry) for entry in replaced),
        swap_outs=tuple(BlockCopy(*move) for move in (out or {}).items()),
        copies=tuple(BlockCopy(*move) for move in copies),
        swap_ins=tuple(BlockCopy(*move) for move in (back or {}).items()),
    )


@pytest.fixture(scope="session")
def make() -> Callable[..., WitnessWorker]:
    """Makes witnesses with a vocabulary of 50,000 and blocks of 4."""
    return _witness


@pytest.fixture(scope="session")
def plan() -> Callable[..., StepPlan]:
    """Makes plans by hand."""
    return _plan


@pytest.fixture(scope="session")
def first() -> StepPlan:
    """Handle 1 computes 10 to 14 in blocks 5 and 2."""
    return _plan(1, admitted=(1,), grants={1: (5, 2)}, rows={1: (0, (10, 11, 12, 13, 14))})


@pytest.fixture(scope="session", params=["torch", "avx512", "avx2"])
def kernels(request: pytest.FixtureRequest) -> TokenKernels | None:
    """What chooses tokens on a CPU: plain torch, and native code for each instruction set."""
    if request.param == "torch":
        return None
    try:
        return NativeTokens(load_library(request.param).pool(2))
    except NativeUnavailable as error:
        pytest.skip(f"no native code here: {error}")
