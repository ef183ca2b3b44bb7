"""A draft model guesses for a real model: the same tokens as without, in blocks that hold both."""

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
from blockyard.workers.contract import UnsupportedModel
from blockyard.workers.handle_state import PlanError
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


def serve(
    worker: ModelWorker,
    blocks: int = 64,
    host_blocks: int = 0,
    policy: PreemptionPolicy = PreemptionPolicy.AUTO,
    after_step: Callable[[Scheduler], None] = lambda scheduler: None,
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
    waiting = _requests()
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


@pytest.mark.parametrize(
    ("blocks", "host_blocks", "policy", "kv_dtype"),
    [
        (64, 0, PreemptionPolicy.AUTO, "auto"),
        (9, 0, PreemptionPolicy.RECOMPUTE, "auto"),
        (9, 14, PreemptionPolicy.SWAP, "int8"),
    ],
)
def test_whoever_guesses_every_token_is_the_same(
    make_worker: Callable[..., ModelWorker],
    tiny_dir: Path,
    other_dir: Path,
    blocks: int,
    host_blocks: int,
    policy: PreemptionPolicy,
    kv_dtype: str,
) -> None:
    """The model itself guesses nearly all of its tokens, a stranger next to none."""
    pools = blocks, host_blocks
    plain, itself, stranger = [
        serve(make_worker(draft, *pools, kv_dtype=kv_dtype), *pools, policy)
        for draft in (None, tiny_dir, other_dir)
    ]
    for served in (itself, stranger):
        assert served.tokens == plain.tokens
        for member, scores in plain.scores.items():
            assert served.scores[member] == pytest.approx(scores, abs=1e-4)
        assert served.steps["guesses"] and served.steps["copies"] and served.steps["forks"]
        assert bool(served.books.preemptions) is (blocks < 64)
        assert bool(served.steps["swaps"]) is bool(host_blocks)
        assert served.books.prefix_hit_tokens
    assert itself.books.right_guesses > 0.95 * itself.books.guessed_tokens
    assert itself.books.step < 0.5 * plain.books.step
    assert stranger.books.right_guesses < 0.3 * stranger.books.guessed_tokens
    few, many = stranger.books.guessed_tokens, itself.books.guessed_tokens
    assert few < 0.5 * many, "where guesses fail there are few"


@pytest.mark.parametrize("host_blocks", [0, 14])
def test_every_block_holds_what_both_models_have_computed(
    make_worker: Callable[..., ModelWorker], tiny_dir: Path, host_blocks: int
) -> None:
    """A model that guesses for itself has the same keys and values twice, step after step."""
    worker = make_worker(tiny_dir, 9, host_blocks)
    cache = worker._cache
    assert cache is not None and cache.beside is not None
    own, beside = cache.blocks, cache.beside.blocks
    compared = 0

    def compare(scheduler: Scheduler) -> None:
        nonlocal compared
        for request in scheduler._batch.running:
            for index, block_id in enumerate(request.table.block_ids):
                slots = min(16, max(0, request.num_computed - 16 * index))
                one, other = own[block_id, ..., :slots, :], beside[block_id, ..., :slots, :]
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
                compared += slots

    policy = PreemptionPolicy.SWAP if host_blocks else PreemptionPolicy.RECOMPUTE
    served = serve(worker, 9, host_blocks, policy, compare)
    assert compared > 1000 and served.books.preemptions and served.steps["copies"]


def test_the_books_count_the_bytes_of_both(
    make_worker: Callable[..., ModelWorker], tiny_dir: Path, other_dir: Path
) -> None:
    config = WorkerConfig(str(tiny_dir), 512, device="cpu", kv_memory_bytes=1 << 20, max_running=8)
    own = 2 * 2 * 2 * 16 * 16 * 4  # layers, keys and values, heads, their size, slots, bytes
    plain = ModelWorker(config).load()
    assert plain.block_bytes == own and plain.max_blocks == (1 << 20) // own
    both = ModelWorker(replace(config, draft_dir=str(other_dir))).load()
    assert both.block_bytes == own + 2 * 16 * 16 * 4
    assert both.max_blocks == (1 << 20) // both.block_bytes < plain.max_blocks
    assert both.weight_bytes > plain.weight_bytes
    worker = make_worker(other_dir, 5, 3)
    assert worker._cache is not None
    assert worker._cache.pool.nbytes == 5 * both.block_bytes
    assert worker._cache.host_pool.nbytes == 3 * both.block_bytes


def test_weights_of_the_draft_may_have_fewer_bits(
    make_worker: Callable[..., ModelWorker], tiny_dir: Path
) -> None:
    plain = serve(make_worker(None))
    rough = serve(make_worker(tiny_dir, draft_weights="int8"))
    assert rough.tokens == plain.tokens
    right, guessed = rough.books.right_guesses, rough.books.guessed_tokens
    assert 0.6 * guessed < right, "it thinks nearly alike"
    with pytest.raises(ValueError, match="no-such"):
        make_worker(tiny_dir, draft_weights="no-such")


@pytest.mark.parametrize("width", [290, 310])
def test_what_fills_up_a_vocabulary_may_differ(
    make_worker: Callable[..., ModelWorker],
    tiny_llama: LlamaForCausalLM,
    tmp_path: Path,
    width: int,
) -> None:
    """Rows of the embedding that no token has; the narrower one here lacks tokens that occur."""
    model = LlamaForCausalLM(replace_vocabulary(tiny_llama.config, width))
    kept = min(width, 300)
    with torch.no_grad():
        for name, values in tiny_llama.state_dict().items():
            target = model.state_dict()[name]
            target[:kept].copy_(values[:kept]) if len(values) == 300 else target.copy_(values)
    model.save_pretrained(tmp_path)
    served = serve(make_worker(tmp_path))
    assert served.tokens == serve(make_worker(None)).tokens
    assert served.books.right_guesses > 0.5 * served.books.guessed_tokens


def replace_vocabulary(config: LlamaConfig, width: int) -> LlamaConfig:
    return LlamaConfig(**(config.to_dict() | {"vocab_size": width}))


def test_a_draft_model_that_cannot_be_computed_is_refused_by_name(
    make_worker: Callable[..., ModelWorker], tiny_dir: Path, tmp_path: Path
) -> None:
    for file in tiny_dir.iterdir():
        text = file.read_bytes()
        if file.name == "config.json":
            text = text.replace(b'"vocab_size"', b'"kv_lora_rank": 8, "vocab_size"')
        (tmp_path / file.name).write_bytes(text)
    with pytest.raises(UnsupportedModel, match=f"draft model {tmp_path.name}: .*compressed"):
        make_worker(tmp_path)


def test_guesses_come_from_one_side_alone(
    make_worker: Callable[..., ModelWorker],
    plan: Callable[..., StepPlan],
    tiny_dir: Path,
) -> None:
    rows: dict[int, tuple[int, Sequence[int]]] = {1: (0, (7, 8, 20))}
    given = replace(plan(1, admitted=(1,), grants={1: (5,)}, rows=rows), guesses=(1,))
    with pytest.raises(PlanError, match="brings guesses"):
        make_worker(tiny_dir).execute(given)
    left = replace(given, token_ids=(7, 8, -2))
    with pytest.raises(PlanError, match="token id outside"):
        make_worker(None).execute(left)
