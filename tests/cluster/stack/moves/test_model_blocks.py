"""Blocks of a real model go with its request, in whatever numbers they are kept."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from blockyard.cluster.moves import block_moves
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.request import RequestSpec
from blockyard.workers.config import Executor, WorkerConfig
from blockyard.workers.worker import ModelWorker

pytestmark = pytest.mark.timeout(120)

PROMPT = tuple(range(20, 65))
LIMIT = 60


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=251,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.3,  # wide, so that no two best scores are close
    )
    folder = tmp_path_factory.mktemp("small")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "fp8"])
async def test_keys_and_values_go_with_their_scales(
    stack: Any,
    spec: Callable[..., RequestSpec],
    collected: Callable[..., Any],
    begin: Callable[..., Any],
    model_dir: Path,
    kv_dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RateMeter, "observe_step", lambda *told: None)
    monkeypatch.setattr(block_moves, "LEAST_SECONDS", 60.0)
    monkeypatch.setattr(block_moves, "LONGEST_SECONDS", 60.0)
    monkeypatch.setattr(block_moves, "MOST_SECONDS", 60.0)

    def make(config: WorkerConfig) -> Executor:
        backend = "torch" if kv_dtype == "fp8" else "auto"  # no CPU path reads it
        told = replace(config, model_dir=str(model_dir), device="cpu", kv_dtype=kv_dtype)
        return ModelWorker(replace(told, backend=backend, threads=1))

    async def add() -> Any:
        group = await stack.add_group(num_host_blocks=64, make=make)
        memory = group.workers[0].host_memory()
        rates = RateMeter(memory.block_bytes, prefill_tokens_per_second=10.0)
        group.server.engine.scheduler.batch.parking.rates = rates
        return group

    giver = await add()
    asked = spec("undisturbed", PROMPT, LIMIT)
    expected, _ = await collected(await stack.dispatcher.submit("witness", asked))
    giver.server.engine.scheduler.reset_prefix_cache()
    client = await begin(replace(asked, request_id="mover"))
    await stack.until(lambda: len(client.tokens) > 5)
    giver.workers[0].gate.clear()
    taker = await add()
    # A rank has scales for its blocks as soon as it has run a step.
    taker.server.engine.submit(spec("first", (1, 2, 3), 1))
    await stack.until(lambda: not taker.server.engine.num_requests)
    giver.server.hand_over()
    giver.workers[0].gate.set()
    await client.reading
    assert client.tokens == expected
    moves, ledger = taker.server.ledger().moves, taker.server.ledger()
    assert (moves.brought, moves.cut_short, ledger.recomputed_tokens) == (1, 0, 0)
    assert moves.bytes_in == moves.blocks_in * giver.workers[0].host_memory().block_bytes
    await stack.until(stack.idle)
