"""Blocks move between ranks that are processes; whoever is killed on the way changes no token."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from blockyard.cluster.engine import Engine
from blockyard.cluster.group_ranks import GroupRanks
from blockyard.cluster.moves import block_moves
from blockyard.cluster.moves.block_moves import BlockMoves
from blockyard.cluster.rank_process import ProcessRank
from blockyard.cluster.worker_group import WorkerGroup
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.config import WorkerConfig, WorkerKind
from blockyard.workers.fake import witness_generate
from blockyard.workers.witness_files import write_witness_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CONTEXT, BLOCKS, HOST_BLOCKS, LIMIT = 1024, 128, 128, 300
PROMPT = tuple(range(3, 203))
VOCAB = 259


@dataclass
class Group:
    """A group of two ranks, its engine, and what it has told."""

    handles: list[ProcessRank]
    ranks: GroupRanks
    tokens: list[int] = field(default_factory=list)
    group: Any = None
    engine: Any = None
    moves: Any = None
    loop: Any = None

    @property
    def host_blocks(self) -> Any:
        return self.engine.ledger().host_blocks

    async def start(self) -> None:
        limits = SchedulerConfig(CONTEXT, block_size=16, max_step_tokens=64, max_running=16)
        # Computing is dear, whatever a witness takes for it.
        rates = RateMeter(128, prefill_tokens_per_second=1.0)
        group = self.group = await self.ranks.start()
        scheduler = Scheduler(limits, BLOCKS, HOST_BLOCKS, rates)
        self.engine = Engine(
            scheduler, group, self.deliver, on_change=self.changed, repair=self.repair
        )
        self.moves = BlockMoves(self.engine)
        self.moves.carrier = lambda: self.ranks.carrier
        self.loop = asyncio.create_task(self.engine.run())

    def deliver(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            self.tokens.extend(update.token_ids)

    def changed(self) -> None:
        self.moves.note_change()

    async def repair(self) -> WorkerGroup:
        async def replacement(rank: int) -> ProcessRank:
            self.handles[rank] = ProcessRank(f"again-{rank}")
            return self.handles[rank]

        await self.group.close()
        group = self.group = await self.ranks.reform(replacement)
        return group

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(60.0):
            while not condition():
                await asyncio.sleep(0.002)

    async def close(self) -> None:
        await self.moves.close()
        self.loop.cancel()
        await asyncio.gather(self.loop, return_exceptions=True)
        await self.ranks.close()
        await self.group.close()
        for handle in self.handles:
            handle.close()


@pytest.fixture
async def groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Group, Group]]:
    monkeypatch.setattr(RateMeter, "observe_step", lambda *told: None)
    monkeypatch.setattr(block_moves, "LONGEST_SECONDS", 20.0)
    write_witness_files(tmp_path)
    config = WorkerConfig(
        str(tmp_path),
        CONTEXT,
        WorkerKind.WITNESS,
        block_size=16,
        num_blocks=BLOCKS,
        num_host_blocks=HOST_BLOCKS,
    )
    made = []
    for name in ("giver", "taker"):
        handles = [ProcessRank(f"{name}-{rank}") for rank in range(2)]
        configs = [replace(config, rank=rank, world_size=2) for rank in range(2)]
        ranks = GroupRanks(handles, configs, ["here"] * 2, moves_blocks=True)
        made.append(Group(handles, ranks))
    await asyncio.gather(*(group.start() for group in made))
    yield made[0], made[1]
    for group in made:
        await group.close()


async def move(giver: Group, taker: Group, kill: ProcessRank | None = None) -> None:
    """Let a request run at one group and go on at the other, and somebody die just then."""
    spec = RequestSpec("mover", PROMPT, SamplingParams(LIMIT))
    giver.engine.submit(spec)
    await giver.until(lambda: len(giver.tokens) > 5)
    consignment = giver.moves.send_off("mover")
    snapshot = giver.engine.scheduler.snapshot("mover", time.monotonic())
    giver.engine.abort("mover")
    assert consignment is not None
    taker.engine.resume(snapshot)
    taker.moves.bring("mover", consignment)
    if kill is not None:
        kill.kill()
    await taker.until(lambda: not taker.engine.num_requests)
    tokens = giver.tokens + taker.tokens
    assert tokens == witness_generate(PROMPT, LIMIT, VOCAB)
    await giver.until(lambda: giver.host_blocks.free == taker.host_blocks.free == HOST_BLOCKS)
    giver.engine.check()
    taker.engine.check()


async def test_blocks_go_from_rank_to_rank(groups: tuple[Group, Group]) -> None:
    giver, taker = groups
    await move(giver, taker)
    ledger = taker.engine.ledger()
    assert (ledger.moves.brought, ledger.moves.cut_short, ledger.recomputed_tokens) == (1, 0, 0)
    assert ledger.moves.bytes_in == giver.engine.ledger().moves.bytes_out >= 2 * 13 * 128
    assert ledger.wire_bytes_per_second > 0


@pytest.mark.parametrize("side", ["giver", "taker"])
async def test_a_rank_that_is_killed_on_the_way(groups: tuple[Group, Group], side: str) -> None:
    giver, taker = groups
    group = giver if side == "giver" else taker
    before = group.group
    await move(giver, taker, kill=group.handles[1])
    await group.until(lambda: group.group is not before and group.group.lost is None)
    assert group.engine.lost is None, "it was formed anew"
