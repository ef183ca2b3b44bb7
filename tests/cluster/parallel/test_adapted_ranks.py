"""Adapters over models that are divided over ranks in real processes, against merged weights."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from blockyard.cluster.engine import Engine
from blockyard.cluster.group_ranks import GroupRanks
from blockyard.cluster.rank_process import ProcessRank
from blockyard.cluster.worker_group import WorkerGroup
from blockyard.scheduler.block_keys import NO_EXTRAS, PrefixExtras
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.request import FinishReason, RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.adapter_description import AdapterRefused
from blockyard.workers.adapter_description import describe_adapter as describe
from blockyard.workers.config import WorkerConfig

pytestmark = pytest.mark.slow

CONTEXT, NUM_BLOCKS = 256, 24
PROMPTS = [[(7 * n + 3 * k) % 120 + 2 for k in range(30 + n)] for n in range(4)]
SHAPE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,  # two for the first rank, one for the other
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": 0,
}


def build(family: str) -> Any:
    torch.manual_seed(5)
    models: dict[str, Any] = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True)),
        "phi3": lambda: Phi3ForCausalLM(Phi3Config(**SHAPE)),
    }
    model = models[family]()
    model.generation_config.eos_token_id = None
    return model.train(False)


def reference(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False)
    found: list[int] = out[0, len(prompt) :].tolist()
    return found


@dataclass
class Adapted:
    """A group in processes under the real engine."""

    pool: Any
    group_ranks: GroupRanks
    engine: Engine = field(init=False)
    group: WorkerGroup = field(init=False)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def deliver(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            self.tokens[update.request_id].extend(update.token_ids)
            if update.finish_reason is FinishReason.ERROR:
                self.errors[update.request_id] = update.error

    async def repair(self) -> WorkerGroup:
        await self.group.close()
        self.group = await self.group_ranks.reform(self.replacement)
        return self.group

    async def replacement(self, rank: int) -> ProcessRank:
        found: ProcessRank = self.pool.take(rank + 1)[rank]
        return found

    def ask(self, name: str, prompt: Sequence[int], count: int, adapter: Any = None) -> None:
        extras = NO_EXTRAS
        if adapter is not None:
            extras = PrefixExtras(adapter.name, adapter.version)
        self.tokens[name] = []
        sampling = SamplingParams(max_tokens=count, temperature=0.0)
        self.engine.submit(RequestSpec(name, tuple(prompt), sampling, extras=extras))

    async def produced(self, name: str, count: int) -> None:
        async with asyncio.timeout(120):
            while len(self.tokens[name]) < count:
                await asyncio.sleep(0.005)


async def start(pool: Any, folder: Path, ranks: int, depth: int = 1) -> Adapted:
    handles = pool.take(ranks)
    configs = [
        WorkerConfig(
            str(folder), CONTEXT, device="cpu", dtype="float32", num_blocks=NUM_BLOCKS,
            num_host_blocks=NUM_BLOCKS, threads=1, max_step_tokens=24, max_adapters=3,
            rank=rank, world_size=ranks,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    adapted = Adapted(pool, GroupRanks(handles, configs, ["here"] * ranks))
    adapted.group = await adapted.group_ranks.start()
    limits = SchedulerConfig(CONTEXT, max_running=16, max_step_tokens=24, pipeline_depth=depth)
    scheduler = Scheduler(limits, NUM_BLOCKS, NUM_BLOCKS)
    adapted.engine = Engine(scheduler, adapted.group, adapted.deliver, repair=adapted.repair)
    adapted.engine.adapters.host = adapted.group_ranks
    adapted.group_ranks.note_lost = adapted.engine.adapters.lost
    return adapted


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3"])
def test_mixed_batches_give_the_tokens_of_merged_weights(
    family: str, ranks: int, rank_pool: Any, tmp_path: Path, make_adapter: Any
) -> None:
    model = build(family)
    model.save_pretrained(tmp_path / "model")
    merged = [model] + [
        make_adapter(tmp_path / name, model, seed, rank=rank)
        for seed, (name, rank) in enumerate({"a": 4, "b": 8, "c": 1}.items())
    ]
    adapters = [None, *(describe(tmp_path / name, name, 16) for name in "abc")]

    async def work() -> None:
        adapted = await start(rank_pool, tmp_path / "model", ranks, depth=2)
        loop = asyncio.create_task(adapted.engine.run())
        for adapter in adapters[1:]:
            assert adapter is not None
            await adapted.engine.adapters.load(adapter)
        # More than the pool has room for, in chunks: some are preempted.
        for number in range(8):
            adapted.ask(str(number), PROMPTS[number // 2], 40, adapters[number % 4])
        await adapted.engine.wait_idle()
        assert adapted.engine.lost is None, adapted.engine.lost
        assert adapted.engine.ledger().preemptions > 0
        adapted.engine.check()
        for number in range(8):
            expected = reference(merged[number % 4], PROMPTS[number // 2], 40)
            assert adapted.tokens[str(number)] == expected, number
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await adapted.group.close()

    asyncio.run(work())


def test_a_rank_that_takes_another_s_place_has_its_adapters(
    rank_pool: Any, tmp_path: Path, make_adapter: Any
) -> None:
    model = build("llama")
    model.save_pretrained(tmp_path / "model")
    merged = make_adapter(tmp_path / "a", model, 1)
    adapter = describe(tmp_path / "a", "a", 16)
    make_adapter(tmp_path / "b", model, 2)
    gone = describe(tmp_path / "b", "b", 16)

    async def work() -> None:
        adapted = await start(rank_pool, tmp_path / "model", 2)
        loop = asyncio.create_task(adapted.engine.run())
        for each in (adapter, gone):
            await adapted.engine.adapters.load(each)
        adapted.ask("with", PROMPTS[0], 150, adapter)
        adapted.ask("base", PROMPTS[1], 150)
        adapted.ask("lost", PROMPTS[2], 150, gone)
        await adapted.produced("lost", 5)
        # Whoever comes for the dead one does not find these files any more.
        make_adapter(tmp_path / "b", model, 3)
        rank_pool.kill(1)
        await adapted.engine.wait_idle()
        assert adapted.engine.lost is None, adapted.engine.lost
        assert adapted.tokens["with"] == reference(merged, PROMPTS[0], 150)
        assert adapted.tokens["base"] == reference(model, PROMPTS[1], 150)
        assert "could not be loaded again" in adapted.errors["lost"]
        assert adapted.engine.adapters.served == (adapter,)
        # And what does not fit is refused by all, whoever said so.
        make_adapter(tmp_path / "d", model, 3, rank=8, alter=_spoil)
        with pytest.raises(AdapterRefused, match="no finite numbers"):
            await adapted.engine.adapters.load(describe(tmp_path / "d", "d", 16))
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await adapted.group.close()

    asyncio.run(work())


def _spoil(tensors: dict[str, torch.Tensor]) -> None:
    """In what the second rank alone reads."""
    tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"][-1] = float("nan")
