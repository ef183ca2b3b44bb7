"""Ranks put to rest in the middle of steps and woken: with the same tokens, or other weights."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from blockyard.cluster.engine import Engine
from blockyard.cluster.group import Group
from blockyard.cluster.group_ranks import GroupRanks
from blockyard.cluster.resting import Rest, Weights
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig

CONTEXT, NUM_BLOCKS, NEW_TOKENS = 256, 32, 40
PROMPTS = [list(range(3, 40)), [7, 8]]


@pytest.fixture(scope="module")
def llama(save_model: Callable[[Any], Path]) -> Path:
    return save_model(
        LlamaConfig(
            vocab_size=301,
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=3,
            max_position_embeddings=CONTEXT,
            eos_token_id=None,
        )
    )


class Run:
    """Two ranks under an engine, with two steps in flight."""

    def __init__(self, pool: Any, directory: Path) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.grown = asyncio.Event()
        configs = [
            WorkerConfig(
                str(directory),
                CONTEXT,
                device="cpu",
                dtype="float32",
                num_blocks=NUM_BLOCKS,
                threads=1,
                rank=rank,
                world_size=2,
            )
            for rank in range(2)
        ]
        self.ranks = GroupRanks(pool.take(2), configs, ["here", "here"])
        self.directory = directory

    async def serve(self, rests: int) -> dict[str, list[int]]:
        self.group = await self.ranks.start()
        limits = SchedulerConfig(CONTEXT, max_running=8, pipeline_depth=2)
        engine = Engine(Scheduler(limits, NUM_BLOCKS), self.group, self._deliver)
        rest = Rest(engine.succession, self._free, self._load, Weights(str(self.directory)))
        loop = asyncio.create_task(engine.run())
        for number, prompt in enumerate(PROMPTS):
            self._submit(engine, str(number), prompt)
        for number in range(rests):
            async with asyncio.timeout(240):
                while not all(len(told) > 5 * number for told in self.tokens.values()):
                    self.grown.clear()
                    await self.grown.wait()
            before = {name: len(told) for name, told in self.tokens.items()}
            await rest.sleep()
            assert all(len(told) < NEW_TOKENS for told in self.tokens.values()), "too late to tell"
            self._submit(engine, f"late {number}", [9, number])
            await rest.wake()
            assert all(len(self.tokens[name]) >= length for name, length in before.items())
        await engine.wait_idle()
        engine.check()
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await self.group.close()
        assert engine.lost is None
        return self.tokens

    def _submit(self, engine: Engine, name: str, prompt: list[int]) -> None:
        self.tokens[name] = []
        sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.9, seed=5)
        engine.submit(RequestSpec(name, tuple(prompt), sampling))

    def _deliver(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            self.tokens[update.request_id].extend(update.token_ids)
        self.grown.set()

    async def _free(self) -> None:
        await self.group.close()
        await self.ranks.rest()

    async def _load(self, weights: Weights) -> Group:
        self.group = await self.ranks.wake(weights)
        return self.group


@pytest.mark.timeout(600)  # on a busy machine
def test_ranks_that_have_slept_give_the_same_tokens(rank_pool: Any, llama: Path) -> None:
    rested = asyncio.run(Run(rank_pool, llama).serve(rests=2))
    processes = [rank.process_id for rank in rank_pool.take(2)]
    calm = asyncio.run(Run(rank_pool, llama).serve(rests=0))
    assert {name: rested[name] for name in calm} == calm
    assert [len(told) for told in rested.values()] == [NEW_TOKENS] * 4
    assert [rank.process_id for rank in rank_pool.take(2)] == processes
