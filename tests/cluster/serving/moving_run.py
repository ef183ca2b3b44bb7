"""Two groups in Ray actors, and one request that must move between them; for test_moves.py.

    python moving_run.py FOLDER

A program of its own, for Ray to be started and ended in. What came of it is in `told.json` in the
folder. The engines and ranks are those of a deployment; only rates and patience are pinned, so that
bringing blocks is cheaper than computing them, however busy the machine.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from blockyard.cluster.actors import locate_central
from blockyard.cluster.config import LOOPBACK, ServeConfig
from blockyard.cluster.group_replica import GroupReplica
from blockyard.cluster.ingress import ClusterDispatcher
from blockyard.cluster.runtime import ray_cluster
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.snapshot import RequestSnapshot
from blockyard.workers.config import WorkerKind, WorkerProfile
from blockyard.workers.description import describe_model
from blockyard.workers.witness_files import write_witness_files

PROMPT = tuple(range(3, 203))
LIMIT, KEPT = 60, 40
"""Tokens of the answer, and after how many the group where it began lets go of it.

Less are left for the other one, so that it cannot come to the same point.
"""
BLOCKS = 64


class LetsGo:
    """Implements `EngineListener`: once somebody has so many tokens, all leave for elsewhere."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._num_tokens = 0

    def submitted(self, spec: RequestSpec) -> None:
        """Nothing to do."""

    def resumed(self, snapshot: RequestSnapshot) -> None:
        """Nothing to do."""

    def aborted(self, request_id: str, choice: int | None) -> None:
        """Nothing to do."""

    def stepped(self, updates: Sequence[RequestUpdate]) -> None:
        """Count; the group is told what it is told at the end of a drain."""
        before = self._num_tokens
        self._num_tokens += sum(len(update.token_ids) for update in updates)
        if before < KEPT <= self._num_tokens:
            self._server.start_drain()
            # Not amid the news of this step.
            asyncio.get_running_loop().call_soon(self._server.hand_over)


def pinned(profiles: Sequence[WorkerProfile]) -> RateMeter:
    """At a token a second whatever is there is worth bringing."""
    return RateMeter(profiles[0].block_bytes, prefill_tokens_per_second=1.0)


class GroupActor:
    """A group's replica as Serve runs it: it awaits what makes it."""

    async def start(self, config: ServeConfig) -> None:
        """Up once it can step."""
        for place, told in (
            ("scheduler.cost_model.RateMeter.observe_step", lambda *told: None),
            ("cluster.group_replica._slowest_rates", pinned),
            ("cluster.moves.block_moves.LEAST_SECONDS", 60.0),
            ("cluster.moves.block_moves.LONGEST_SECONDS", 60.0),
            ("cluster.moves.block_moves.MOST_SECONDS", 60.0),
        ):
            mock.patch(f"blockyard.{place}", told).start()
        self._replica = GroupReplica.__new__(GroupReplica)
        await GroupReplica.__init__(self._replica, config, False)
        self._replica._server.engine.listen(LetsGo(self._replica._server))

    async def books(self) -> dict[str, Any]:
        """Proved, once nothing is held any more on either side of the group's link."""
        server = self._replica._server
        async with asyncio.timeout(60):
            while True:
                server.check()
                books = server.ledger()
                pools = (books.blocks, books.host_blocks)
                if all(pool.free + pool.cached == pool.total for pool in pools):
                    break
                await asyncio.sleep(0.01)
        moves = books.moves
        return {
            "brought": moves.brought,
            "cut_short": moves.cut_short,
            "blocks_out": moves.blocks_out,
            "blocks_in": moves.blocks_in,
            "bytes_out": moves.bytes_out,
            "bytes_in": moves.bytes_in,
            "tokens_in": moves.tokens_in,
            "recomputed_tokens": books.recomputed_tokens,
            "rank_processes": await self._replica.process_ids(),
        }


async def start_group(config: ServeConfig) -> Any:
    """One more, with an engine and a rank in processes of their own."""
    bundles = placement_group([{"CPU": 1.0}] * (1 + config.num_ranks))
    await bundles.ready()
    place = PlacementGroupSchedulingStrategy(bundles, placement_group_bundle_index=0)
    actor: Any = ray.remote(GroupActor).options(num_cpus=1, scheduling_strategy=place).remote()
    await actor.start.remote(config)
    return actor


async def drive(config: ServeConfig) -> dict[str, Any]:
    """Ask for one answer, and see where it was computed."""
    groups = await asyncio.gather(*(start_group(config) for _ in range(2)))
    dispatcher = ClusterDispatcher((config.model,), partial(locate_central, config))
    running = asyncio.create_task(dispatcher.run())
    async with asyncio.timeout(60):
        while len(dispatcher.group_ids) < len(groups):
            await asyncio.sleep(0.01)
    spec = RequestSpec("mover", PROMPT, SamplingParams(LIMIT))
    stream = await dispatcher.submit(config.model.name, spec)
    tokens = [token async for update in stream for token in update.token_ids]
    books = await asyncio.gather(*(group.books.remote() for group in groups))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await dispatcher.close()
    return {"tokens": tokens, "groups": books}


def main(folder: Path) -> None:
    """See above."""
    write_witness_files(folder)
    config = ServeConfig(
        describe_model(folder, "witness"),
        kind=WorkerKind.WITNESS,
        device="cpu",
        num_blocks=BLOCKS,
        num_host_blocks=BLOCKS,
        wire_host=LOOPBACK,
    )
    with ray_cluster(None):
        told = asyncio.run(drive(config))
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
