"""A rank killed or stuck in the middle of steps: its group is formed anew, no token changes."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from blockyard.cluster.engine import Engine
from blockyard.cluster.group import Group
from blockyard.cluster.group_ranks import GroupRanks
from blockyard.cluster.rank import RankHandle
from blockyard.cluster.rank_watch import RankWatch
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig

CONTEXT = 256
NUM_BLOCKS = 32
NEW_TOKENS = 60
FOUND_SECONDS = 10.0
"""A rank that stands still is found by then."""
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
        self.stuck: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.forming = False
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

    async def serve(self, hit: int | None, stop: bool = False) -> list[list[int]]:
        """Every prompt's tokens; the rank to hit dies when each has some, and is in a step.

        With `stop` it does not die, but stands still until it is found.
        """
        self.group = await self.ranks.start()
        scheduler = Scheduler(SchedulerConfig(CONTEXT, max_running=8), NUM_BLOCKS)
        engine = Engine(scheduler, self.group, self._deliver, repair=self._repair)
        for number, prompt in enumerate(PROMPTS):
            sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.9, seed=number)
            engine.submit(RequestSpec(str(number), tuple(prompt), sampling))
        watch = RankWatch(engine.stalled_seconds, self._watched, self._end)
        tasks = [asyncio.create_task(engine.run()), asyncio.create_task(watch.run())]
        async with asyncio.timeout(240):
            while hit is not None and not all(self.tokens.values()):
                self.grown.clear()
                await self.grown.wait()
            if hit is not None and stop:
                os.kill(self.pool.take(2)[hit].process_id, signal.SIGSTOP)
                async with asyncio.timeout(FOUND_SECONDS):
                    assert await self.stuck == hit
            elif hit is not None:
                self.pool.kill(hit)
            await engine.wait_idle()
        engine.check()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert self.stuck.done() is stop
        await self.group.close()
        assert engine.lost is None
        assert engine.step_meter.report().reforms == (0 if hit is None else 1)
        assert all(part.seconds > 0 for part in engine.step_meter.report().parts[3:])
        return list(self.tokens.values())

    def _deliver(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            self.tokens[update.request_id].extend(update.token_ids)
        self.grown.set()

    def _watched(self) -> list[RankHandle]:
        ranks: list[RankHandle] = self.pool.take(2)
        return [] if self.forming or self.group.lost else ranks

    def _end(self, rank: int) -> None:
        self.pool.kill(rank)
        self.group.lose(f"rank {rank} was stuck and has been ended")
        self.stuck.set_result(rank)

    async def _repair(self) -> Group:
        self.forming = True
        await self.group.close()
        group: Group = await self.ranks.reform(self._replacement)
        self.group, self.forming = group, False
        return group

    async def _replacement(self, rank: int) -> RankHandle:
        replacement: RankHandle = self.pool.take(2)[rank]
        return replacement


@pytest.mark.timeout(600)  # on a busy machine
@pytest.mark.parametrize(
    ("hit", "stop", "machines"),
    [
        (1, False, ["here", "here"]),
        (1, True, ["here", "here"]),
        pytest.param(0, False, ["here", "here"], marks=pytest.mark.slow),
        pytest.param(0, True, ["here", "here"], marks=pytest.mark.slow),
        pytest.param(1, False, ["here", "there"], marks=pytest.mark.slow),
        pytest.param(1, True, ["here", "there"], marks=pytest.mark.slow),
    ],
    ids=[
        "last-shm",
        "last-stuck-shm",
        "first-shm",
        "first-stuck-shm",
        "last-gloo",
        "last-stuck-gloo",
    ],
)
def test_a_rank_that_is_hit_changes_no_token(
    rank_pool: Any, llama: Path, hit: int, stop: bool, machines: list[str]
) -> None:
    async def run(hit: int | None) -> list[list[int]]:
        return await Run(rank_pool, llama, machines).serve(hit, stop and hit is not None)

    undisturbed = asyncio.run(run(None))
    assert [len(tokens) for tokens in undisturbed] == [NEW_TOKENS] * len(PROMPTS)
    survivor = rank_pool.take(2)[1 - hit].process_id
    victim = rank_pool.take(2)[hit].process_id
    assert asyncio.run(run(hit)) == undisturbed
    assert rank_pool.take(2)[1 - hit].process_id == survivor
    assert rank_pool.take(2)[hit].process_id != victim
