"""One group in this process as a dispatcher: no Ray, no wires. For batch work and tests.

The whole request path stands in front of it as it stands in front of a cluster. Units: seconds.
"""

import asyncio
from collections.abc import Callable
from typing import Self

from blockyard.cluster.books.group_books import GroupBooks
from blockyard.cluster.books.yard_look import look_at_yard
from blockyard.cluster.dispatch import GroupReport, GroupYard, TokenStream
from blockyard.cluster.engine import Engine
from blockyard.cluster.engine_stream import EngineStream, first_words_first
from blockyard.cluster.local_group import LocalGroup
from blockyard.cluster.request_desk import RequestDesk
from blockyard.cluster.resting import Rest, Weights
from blockyard.cluster.served_request import ServedRequest
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.cost_model import RateMeter
from blockyard.scheduler.request import RefusalCode, RequestRefused, RequestSpec, RequestUpdate
from blockyard.scheduler.scheduler import Scheduler
from blockyard.workers.adapter_description import AdapterDescription, AdapterRefused
from blockyard.workers.config import Executor
from blockyard.workers.description import ModelDescription

__all__ = ["LocalDispatcher"]


class LocalDispatcher:
    """Implements `dispatch.Dispatcher`. Make it with `LocalDispatcher.start`."""

    def __init__(
        self, model: ModelDescription, engine_parts: tuple[Scheduler, LocalGroup], device: str
    ) -> None:
        scheduler, group = engine_parts
        self._model = model
        self._device = device
        self._group = group
        self._streams: dict[str, EngineStream] = {}
        self.engine = Engine(scheduler, group, self._deliver, self._lose)
        self.engine.adapters.host = group
        self._desk = RequestDesk(self.engine, self._deliver)
        self._loop_task = asyncio.create_task(self.engine.run(), name="engine-loop")

    @classmethod
    async def start(
        cls, model: ModelDescription, executor: Executor, limits: SchedulerConfig
    ) -> Self:
        """Load the model in `executor` and begin to step.

        Raises:
            Exception: whatever loading raises.
        """
        group = LocalGroup(executor)
        try:
            profile = await group.load()
        except BaseException:
            await group.close()
            raise
        rates = RateMeter(
            profile.block_bytes, profile.prefill_tokens_per_second, profile.link_bytes_per_second
        )
        scheduler = Scheduler(limits, profile.max_blocks, profile.max_host_blocks, rates)
        return cls(model, (scheduler, group), profile.device)

    def rest(self, make_executor: Callable[[str], Executor]) -> Rest:
        """What puts the model to sleep, wakes it and changes its weights.

        Args:
            make_executor: of the model in a directory, with as many blocks as the first one.
        """
        from blockyard.workers.given_back import give_back_memory  # imports torch

        adapters = self._group.adapters

        async def free() -> None:
            await self._group.close()
            await asyncio.to_thread(give_back_memory)

        async def load(weights: Weights) -> LocalGroup:
            executor = await asyncio.to_thread(make_executor, weights.directory)
            self._group = LocalGroup(executor, weights.version, adapters)
            try:
                await self._group.load()
            except BaseException:
                await free()
                raise
            self.engine.adapters.host = self._group
            for adapter_id in self._group.lost_adapters:
                self.engine.adapters.lost(adapter_id)
            return self._group

        return Rest(self.engine.succession, free, load, Weights(self._model.directory))

    def models(self) -> tuple[ModelDescription, ...]:
        """The one model."""
        return (self._model,)

    def adapters(self, model: str) -> tuple[AdapterDescription, ...]:
        """Adapters that requests may ask for."""
        return self.engine.adapters.served

    async def load_adapter(self, model: str, adapter: AdapterDescription) -> None:
        """Serve an adapter; see `AdapterDirectory`.

        Raises:
            RequestRefused: it cannot be served.
        """
        try:
            await self.engine.adapters.load(adapter)
        except AdapterRefused as refusal:
            raise RequestRefused(RefusalCode.INVALID, str(refusal), "adapter") from None

    async def unload_adapter(self, model: str, name: str) -> None:
        """Take no more requests for an adapter; those that run with it finish first."""
        self.engine.adapters.withdraw(name)

    async def submit(self, model: str, spec: RequestSpec) -> TokenStream:
        """Hand a request to the engine.

        Raises:
            RequestRefused: the caller's mistake, too much load, or the engine is lost.
        """
        stream = EngineStream(spec.request_id, range(spec.num_choices), self._abort)
        self.engine.submit(spec)
        stream.accepted.set_result(None)
        self._streams[spec.request_id] = stream
        return stream

    async def reports(self, audit: bool = False, memory: bool = False) -> tuple[GroupReport, ...]:
        """The books; with `audit` they are proved first."""
        if audit:
            self.engine.check()
        books = GroupBooks(
            self.engine.ledger(),
            audit="" if audit else None,
            steps=self.engine.step_meter.report(),
        )
        return (GroupReport("local", self._model.name, self._device, "", books),)

    async def yards(self, group_id: str, max_cells: int) -> tuple[GroupYard, ...]:
        """The books with the contiguous shadow, and a picture of the pool."""
        books = GroupBooks(self.engine.ledger(), self.engine.shadow.reports())
        report = GroupReport("local", self._model.name, self._device, "", books)
        return (GroupYard(report, await look_at_yard(self.engine.scheduler, max_cells)),)

    async def requests(
        self, tenant: str, name: str, call_off: bool = False
    ) -> tuple[ServedRequest, ...]:
        """A tenant's requests with a name; see `RequestDesk`."""
        return (self._desk.call_off if call_off else self._desk.find)(tenant, name)

    async def ready(self) -> bool:
        """Whether the engine steps."""
        return self.engine.lost is None

    async def close(self) -> None:
        """Stop stepping, whatever is still live."""
        self.engine.adapters.close()
        self._loop_task.cancel()
        await asyncio.gather(self._loop_task, return_exceptions=True)
        await self._group.close()

    def _abort(self, stream: EngineStream, choice: int | None) -> None:
        if self._streams.get(stream.request_id) is not stream:
            return
        self.engine.abort(stream.request_id, choice)
        if stream.ended:
            del self._streams[stream.request_id]

    def _deliver(self, updates: list[RequestUpdate]) -> None:
        for update in first_words_first(updates, self._streams):
            stream = self._streams.get(update.request_id)
            if stream is None:
                continue
            stream.put(update)
            if stream.ended:
                del self._streams[update.request_id]

    def _lose(self) -> None:
        gone = RequestRefused(RefusalCode.UNAVAILABLE, "the workers of this request were lost")
        for stream in self._streams.values():
            stream.refuse(gone)
        self._streams.clear()
