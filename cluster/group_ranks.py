"""The ranks of one group from start to end: loaded, made to meet, connected to, reformed, rested.

Does not know what a rank's process is started by. Units: blocks.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from blockyard.cluster.moves.block_carrier import BlockCarrier
from blockyard.cluster.rank import RankDied, RankHandle
from blockyard.cluster.resting import Weights
from blockyard.cluster.worker_group import WorkerGroup
from blockyard.workers.adapter_description import AdapterDescription, AdapterRefused
from blockyard.workers.config import WorkerConfig, WorkerKind, WorkerProfile

__all__ = ["GroupRanks"]

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 8.0
"""A rank that does not answer for so long is taken for dead."""


class GroupRanks:
    """A group's ranks.

    Attributes:
        profiles: what each rank measured, in rank order.
        num_blocks, num_host_blocks: size of every rank's pools.

    Args:
        handles: of the ranks, in rank order.
        configs: what each is told.
        machines: the machine that each is on, by any name.
        note: told what is being done.
        weight_version: of the weights that `configs` name.
        moves_blocks: whether blocks go to and come from other groups; `close` ends that.
    """

    def __init__(
        self,
        handles: Sequence[RankHandle],
        configs: Sequence[WorkerConfig],
        machines: Sequence[str],
        note: Callable[[str], None] = lambda stage: None,
        weight_version: str = "",
        moves_blocks: bool = False,
    ) -> None:
        self._moves_blocks = moves_blocks
        self._handles = list(handles)
        self._configs = list(configs)
        self._machines = list(machines)
        self._note = note
        self._generation = 0
        self._weight_version = weight_version
        self._adapters: dict[str, AdapterDescription] = {}
        self._changing = asyncio.Lock()
        self.note_lost: Callable[[str], None] = lambda adapter_id: None
        """Called with the id of an adapter that could not be loaded again."""
        self.carrier: BlockCarrier | None = None
        """Has the ranks of now move blocks to and from other groups; None where none move."""
        self.profiles: list[WorkerProfile] = []
        self.num_blocks = 0
        self.num_host_blocks = 0

    async def start(self) -> WorkerGroup:
        """Load the model on every rank, make the pools, have the ranks meet, connect."""
        self._note("loading the model")
        self.profiles = await asyncio.gather(
            *(
                handle.call("load", config)
                for handle, config in zip(self._handles, self._configs, strict=True)
            )
        )
        self.num_blocks = min(profile.max_blocks for profile in self.profiles)
        self.num_host_blocks = min(profile.max_host_blocks for profile in self.profiles)
        self._note("allocating blocks")
        await self._all("allocate", self.num_blocks, self.num_host_blocks)
        return await self._connect()

    async def reform(self, replacement: Callable[[int], Awaitable[RankHandle]]) -> WorkerGroup:
        """Have ranks that live meet again, with others in the place of those that died.

        Those that live keep their weights; all pools are made anew.

        Args:
            replacement: starts a process for the rank of this number.

        Raises:
            RankDied: another one died meanwhile.
            RuntimeError: a new rank has less room than the old one had.
        """
        async with self._changing:
            return await self._reform(replacement)

    async def _reform(self, replacement: Callable[[int], Awaitable[RankHandle]]) -> WorkerGroup:
        dead = await self._dead("give_up")
        for rank in dead:
            self._handles[rank] = await replacement(rank)
        profiles = await asyncio.gather(
            *(self._handles[rank].call("load", self._configs[rank]) for rank in dead)
        )
        for rank, profile in zip(dead, profiles, strict=True):
            if profile.max_blocks < self.num_blocks:
                raise RuntimeError(
                    f"rank {rank} has room for {profile.max_blocks} blocks, the group has "
                    f"{self.num_blocks}"
                )
            self.profiles[rank] = profile
        await self._all("allocate", self.num_blocks, self.num_host_blocks)
        await self._load_adapters_again([self._handles[rank] for rank in dead])
        return await self._connect()

    async def load_adapter(self, adapter: AdapterDescription) -> None:
        """Load an adapter on every rank, beside the steps that run.

        Raises:
            AdapterRefused: it cannot be served; no rank has it.
            Exception: a rank died, or failed otherwise; no other has it.
        """
        async with self._changing:
            await self._load_adapter(adapter, self._handles)
            self._adapters[adapter.adapter_id] = adapter

    async def drop_adapter(self, adapter_id: str) -> None:
        """Have every rank forget an adapter that no step uses any more."""
        async with self._changing:
            self._adapters.pop(adapter_id, None)
            with contextlib.suppress(RankDied):  # who takes its place never hears of it
                await self._all("drop_adapter", adapter_id)

    async def _load_adapter(
        self, adapter: AdapterDescription, handles: Sequence[RankHandle]
    ) -> None:
        loading = [handle.call("load_adapter", adapter) for handle in handles]
        answers = await asyncio.gather(*loading, return_exceptions=True)
        if not any(answers):
            return
        for handle, answer in zip(handles, answers, strict=True):
            if not answer:
                with contextlib.suppress(RankDied):
                    await handle.call("drop_adapter", adapter.adapter_id)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer  # that is not the adapter's fault
        raise AdapterRefused(next(answer for answer in answers if answer))

    async def _load_adapters_again(self, handles: Sequence[RankHandle]) -> None:
        """Have ranks that were just loaded load what the others have; who has it not, none has."""
        for adapter_id, adapter in list(self._adapters.items()):
            try:
                await self._load_adapter(adapter, handles)
            except AdapterRefused as refusal:
                logger.warning("%s cannot be loaded again: %s", adapter_id, refusal)
                del self._adapters[adapter_id]
                await self._all("drop_adapter", adapter_id)
                self.note_lost(adapter_id)

    async def close(self) -> None:
        """Let the ranks move no more blocks."""
        await self._close_carrier()

    async def rest(self) -> None:
        """Free the weights and the pools of every rank, whose connections are closed."""
        await self._close_carrier()
        await self._all("rest")

    async def wake(
        self,
        weights: Weights,
        replacement: Callable[[int], Awaitable[RankHandle]] | None = None,
    ) -> WorkerGroup:
        """Load weights of the same shape on every rank, with pools of the same size, and connect.

        Args:
            weights: the group's from now on.
            replacement: starts a process for the rank of this number, should one have died.

        Raises:
            Exception: whatever loading raises; no rank is loading any more.
        """
        async with self._changing:
            return await self._wake(weights, replacement)

    async def _wake(
        self,
        weights: Weights,
        replacement: Callable[[int], Awaitable[RankHandle]] | None,
    ) -> WorkerGroup:
        if replacement is not None:
            for rank in await self._dead("process_id"):
                self._handles[rank] = await replacement(rank)
        self._weight_version = weights.version
        self._configs = [replace(each, model_dir=weights.directory) for each in self._configs]
        # Not measured again: what a step takes has not changed.
        sized = [
            replace(config, num_blocks=self.num_blocks, num_host_blocks=self.num_host_blocks)
            for config in self._configs
        ]
        loading = [
            handle.call("load", config) for handle, config in zip(self._handles, sized, strict=True)
        ]
        # All of them: who loads on while others have failed could not be told to load another.
        for loaded in await asyncio.gather(*loading, return_exceptions=True):
            if isinstance(loaded, BaseException):
                raise loaded
        await self._all("allocate", self.num_blocks, self.num_host_blocks)
        await self._load_adapters_again(self._handles)
        return await self._connect()

    async def _dead(self, method: str) -> list[int]:
        """Ranks that do not answer a call; of `give_up`, those that do have left the old group."""
        alive = await asyncio.gather(*(self._answers(handle, method) for handle in self._handles))
        return [rank for rank, is_alive in enumerate(alive) if not is_alive]

    async def _answers(self, handle: RankHandle, method: str) -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await handle.call(method)
        except (RankDied, TimeoutError):
            return False
        return True

    async def _connect(self) -> WorkerGroup:
        if len(self._handles) > 1 and self._configs[0].kind is WorkerKind.MODEL:
            self._note("forming the group")
            self._generation += 1
            formation = await self._handles[0].call(
                "open_meeting", self._generation, self._machines
            )
            await self._all("join", formation)
        await self._close_carrier()
        group = await WorkerGroup.connect(await self._all("listen"), self._weight_version)
        if self._moves_blocks and self.num_host_blocks:
            self.carrier = await BlockCarrier.connect(await self._all("open_door"))
            # What it was about to write is to be touched no more before all is made anew.
            self.carrier.on_gone = group.lose
        return group

    async def _close_carrier(self) -> None:
        carrier, self.carrier = self.carrier, None
        if carrier is not None:
            await carrier.close()

    async def _all(self, method: str, *arguments: object) -> list[Any]:
        return await asyncio.gather(*(handle.call(method, *arguments) for handle in self._handles))
