"""A rank killed in the middle of steps: the group is formed anew, and no token is different."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from blockyard.cluster.engine import Engine
from blockyard.cluster.group import Group
from blockyard.cluster.group_ranks import GroupRanks
from blockyard.cluster.rank import RankHandle
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig

CONTEXT = 256
NUM_BLOCKS = 32
NEW_TOKENS = 60
PROMPTS = [list(range(3, 40)), list(range(50, 60)), [7, 8]]


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
    """A group of two ranks under an engine that repairs it."""

    def __init__(self, pool: Any, directory: Path, machines: Sequence[str]) -> None:
        self.pool = pool
        self.tokens: dict[str, list[int]] = {str(n): [] for n in range(len(PROMPTS))}
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
        self.ranks = GroupRanks(pool.take(2), configs, machines)
        self.group: Any = None

    async def serve(self, kill: int | None) -> list[list[int]]:
        """Every prompt's tokens; the rank to kill dies when each has some, and is in a step."""
        self.group = await self.ranks.start()
        scheduler = Scheduler(SchedulerConfig(CONTEXT, max_running=8), NUM_BLOCKS)
        engine = Engine(scheduler, self.group, self._deliver, repair=self._repair)
        for number, prompt in enumerate(PROMPTS):
            sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.9, seed=number)
            engine.submit(RequestSpec(str(number), tuple(prompt), sampling))
        loop = asyncio.create_task(engine.run())
        async with asyncio.timeout(240):
            while kill is not None and not all(self.tokens.values()):
                self.grown.clear()
                await self.grown.wait()
            if kill is not None:
                self.pool.kill(kill)
            await engine.wait_idle()
        engine.check()
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await self.group.close()
        assert engine.lost is None
        assert engine.step_meter.report().reforms == (0 if kill is None else 1)
        assert all(part.seconds > 0 for part in engine.step_meter.report().parts[3:])
        return list(self.tokens.values())

    def _deliver(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            self.tokens[update.request_id].extend(update.token_ids)
        self.grown.set()

    async def _repair(self) -> Group:
        await self.group.close()
        group: Group = await self.ranks.reform(self._replacement)
        self.group = group
        return group

    async def _replacement(self, rank: int) -> RankHandle:
        replacement: RankHandle = self.pool.take(2)[rank]
        return replacement


@pytest.mark.timeout(600)  # on a busy machine
@pytest.mark.parametrize(
    ("killed", "machines"),
    [
        (1, ["here", "here"]),
        pytest.param(0, ["here", "here"], marks=pytest.mark.slow),
        pytest.param(1, ["here", "there"], marks=pytest.mark.slow),
    ],
    ids=["last-shm", "first-shm", "last-gloo"],
)
def test_a_killed_rank_changes_no_token(
    rank_pool: Any, llama: Path, killed: int, machines: list[str]
) -> None:
    undisturbed = asyncio.run(Run(rank_pool, llama, machines).serve(kill=None))
    assert [len(tokens) for tokens in undisturbed] == [NEW_TOKENS] * len(PROMPTS)
    survivor = rank_pool.take(2)[1 - killed].process_id
    victim = rank_pool.take(2)[killed].process_id
    assert asyncio.run(Run(rank_pool, llama, machines).serve(kill=killed)) == undisturbed
    assert rank_pool.take(2)[1 - killed].process_id == survivor
    assert rank_pool.take(2)[killed].process_id != victim
