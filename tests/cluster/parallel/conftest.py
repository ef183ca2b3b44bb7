"""Groups of several ranks in real processes, driven by the real engine, without Ray."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from blockyard.cluster.engine import Engine
from blockyard.cluster.group_ranks import GroupRanks
from blockyard.cluster.rank_process import ProcessRank
from blockyard.scheduler.config import PreemptionPolicy, SchedulerConfig, Speculation
from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig, WorkerProfile

CONTEXT = 256
BLOCK_SIZE = 16


class RankPool:
    """Processes that are started once and load one model after the other."""

    def __init__(self) -> None:
        self._ranks: list[ProcessRank] = []

    def take(self, count: int) -> list[ProcessRank]:
        """The first so many ranks; who died is replaced."""
        while len(self._ranks) < count:
            self._ranks.append(ProcessRank(f"rank-{len(self._ranks)}"))
        return self._ranks[:count]

    def kill(self, number: int) -> None:
        self._ranks[number].kill()
        self._ranks[number] = ProcessRank(f"rank-{number}")

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[RankPool]:
    pool = RankPool()
    yield pool
    pool.close()


@dataclass(frozen=True)
class Served:
    """What came of prompts: their tokens, the books at the end, what each rank measured."""

    tokens: list[list[int]]
    ledger: GroupLedger
    profiles: list[WorkerProfile]


async def _serve(
    ranks: Sequence[ProcessRank],
    machines: Sequence[str],
    directory: Path,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    num_blocks: int,
    max_step_tokens: int,
    policy: PreemptionPolicy,
    first_alone: bool,
    depth: int,
    speculate: Speculation,
    settings: dict[str, Any],
) -> Served:
    configs = [
        WorkerConfig(
            str(directory),
            CONTEXT,
            device="cpu",
            dtype="float32",
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            num_host_blocks=num_blocks,
            threads=1,
            max_step_tokens=max_step_tokens,
            rank=rank,
            world_size=len(ranks),
            **settings,
        )
        for rank in range(len(ranks))
    ]
    group_ranks = GroupRanks(ranks, configs, machines)
    group = await group_ranks.start()
    scheduler = Scheduler(
        SchedulerConfig(
            CONTEXT,
            block_size=BLOCK_SIZE,
            max_running=16,
            max_step_tokens=max_step_tokens,
            preemption=policy,
            pipeline_depth=depth,
            speculate=speculate,
        ),
        num_blocks,
        num_host_blocks=num_blocks,
    )
    tokens: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}

    def deliver(updates: list[RequestUpdate]) -> None:
        for update in updates:
            tokens[update.request_id].extend(update.token_ids)

    engine = Engine(scheduler, group, deliver)
    # Blocks of the first may be fenced for a while: until the last rank has said that it is done.
    loop = asyncio.create_task(engine.run())
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=new_tokens, temperature=0.0)
        engine.submit(RequestSpec(str(number), tuple(prompt), sampling))
        if first_alone and number == 0:
            await engine.wait_idle()
    await engine.wait_idle()
    engine.check()
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    assert engine.lost is None, engine.lost
    await group.close()
    return Served(list(tokens.values()), engine.ledger(), group_ranks.profiles)


@pytest.fixture
def serve(rank_pool: RankPool) -> Callable[..., Served]:
    """Serves prompts on so many ranks; `machines` pretends where they are.

    With `first_alone` the first is done before the others come, which find its blocks. `settings`
    are those of `WorkerConfig`.
    """

    def run(
        directory: Path,
        prompts: Sequence[Sequence[int]],
        *,
        ranks: int,
        new_tokens: int = 12,
        num_blocks: int = 64,
        max_step_tokens: int = 64,
        policy: PreemptionPolicy = PreemptionPolicy.AUTO,
        machines: Sequence[str] | None = None,
        first_alone: bool = False,
        depth: int = 1,
        speculate: Speculation = Speculation.OFF,
        **settings: Any,
    ) -> Served:
        return asyncio.run(
            _serve(
                rank_pool.take(ranks),
                machines or ["here"] * ranks,
                directory,
                prompts,
                new_tokens,
                num_blocks,
                max_step_tokens,
                policy,
                first_alone,
                depth,
                speculate,
                settings,
            )
        )

    return run


@pytest.fixture(scope="session")
def save_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Path]:
    """Saves a random model of a configuration; weights are wide, so that best scores are apart."""
    from transformers import AutoModelForCausalLM

    def save(config: Any) -> Path:
        torch.manual_seed(0)
        build: Any = AutoModelForCausalLM.from_config
        model = build(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0.0, 0.2) if parameter.ndim > 1 else parameter.add_(
                    torch.randn_like(parameter) * 0.1
                )
        folder = tmp_path_factory.mktemp(config.model_type)
        model.save_pretrained(folder)
        return folder

    return save
