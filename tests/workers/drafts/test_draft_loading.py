"""Draft models as they are loaded: bytes in the books, fewer bits, vocabularies, refusals."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from blockyard.scheduler.plan import StepPlan
from blockyard.scheduler.request import RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.config import WorkerConfig
from blockyard.workers.contract import UnsupportedModel
from blockyard.workers.handle_state import PlanError
from blockyard.workers.worker import ModelWorker

Make = Callable[..., ModelWorker]
Serve = Callable[..., Any]


def test_the_books_count_the_bytes_of_both(
    make_worker: Make, tiny_dir: Path, other_dir: Path
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


def test_float8_blocks_have_scales_of_both(
    make_worker: Make, serve: Serve, tiny_dir: Path, other_dir: Path
) -> None:
    """Those of a model that guesses for itself are its own; a stranger has others."""
    for draft, same in ((tiny_dir, True), (other_dir, False)):
        worker = make_worker(draft, kv_dtype="fp8", backend="torch")
        specs = [RequestSpec("a", tuple(range(20)), SamplingParams(max_tokens=20))]
        serve(worker, specs=specs)
        assert worker._cache is not None and worker._cache.beside is not None
        own, beside = worker._cache.head_scales, worker._cache.beside.head_scales
        assert own is not None and beside is not None and worker._cache.beside.scaled
        assert torch.equal(own, beside) if same else beside.shape == (1, 2, 1)
        assert not torch.equal(beside, torch.ones_like(beside))


def test_weights_of_the_draft_may_have_fewer_bits(
    make_worker: Make, serve: Serve, tiny_dir: Path
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
    make_worker: Make,
    serve: Serve,
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
    make_worker: Make, tiny_dir: Path, tmp_path: Path
) -> None:
    for file in tiny_dir.iterdir():
        text = file.read_bytes()
        if file.name == "config.json":
            text = text.replace(b'"vocab_size"', b'"kv_lora_rank": 8, "vocab_size"')
        (tmp_path / file.name).write_bytes(text)
    with pytest.raises(UnsupportedModel, match=f"draft model {tmp_path.name}: .*compressed"):
        make_worker(tmp_path)


def test_guesses_come_from_one_side_alone(
    make_worker: Make,
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
