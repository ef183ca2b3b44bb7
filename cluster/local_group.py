"""One rank in this process: the same group object without wires, for tests, benchmarks and scripts.

The executor runs in a thread of its own, so that the event loop stays free during a step.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from blockyard.cluster.group import GroupLost
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.workers.adapter_description import AdapterDescription, AdapterRefused
from blockyard.workers.config import Executor, FinishesMoves, TakesAdapters, WorkerProfile

__all__ = ["LocalGroup"]

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.0005


class LocalGroup:
    """A group of one rank, loaded already or by `load`."""

    def __init__(
        self,
        executor: Executor,
        weight_version: str = "",
        adapters: dict[str, AdapterDescription] | None = None,
    ) -> None:
        """`adapters`, by id, are loaded with the model, and kept up to date."""
        self.weight_version = weight_version
        self.adapters = adapters if adapters is not None else {}
        self.lost_adapters: list[str] = []
        """Ids of those that could not be loaded with the model."""
        self._executor: Executor | None = executor
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="blockyard-rank")
        self._acknowledged = 0
        self._lost: str | None = None
        self._num_waiting = 0
        self._executed = 0
        self._callback: Callable[[], None] = lambda: None

    async def load(self) -> WorkerProfile:
        """Load the model and make the pools, of as many blocks as there is room for."""
        loop, executor = asyncio.get_running_loop(), self._loaded()
        profile = await loop.run_in_executor(self._thread, executor.load)
        await loop.run_in_executor(
            self._thread, executor.allocate, profile.max_blocks, profile.max_host_blocks
        )
        for adapter_id, adapter in list(self.adapters.items()):
            try:
                await self.load_adapter(adapter)
            except AdapterRefused as refusal:
                logger.warning("%s cannot be loaded again: %s", adapter_id, refusal)
                del self.adapters[adapter_id]
                self.lost_adapters.append(adapter_id)
        return profile

    @property
    def acknowledged_step(self) -> int:
        """Newest step that is finished."""
        return self._acknowledged

    @property
    def lost(self) -> str | None:
        """How the executor failed, or None."""
        return self._lost

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when a step is finished or has failed."""
        self._callback = callback

    async def execute(self, plan: StepPlan) -> StepResult:
        """Run one step in the executor's thread, after those that were begun before it.

        Raises:
            GroupLost: the executor failed, in this step or before.
        """
        if self._lost is not None:
            raise GroupLost(self._lost)
        loop = asyncio.get_running_loop()
        self._num_waiting += 1
        try:
            result = await loop.run_in_executor(self._thread, self._execute, plan)
        except GroupLost:
            self._callback()
            raise
        if result.moving:
            self._look_for_moves(loop)
        else:
            self._acknowledge(result.step)
        return result

    async def load_adapter(self, adapter: AdapterDescription) -> None:
        """Load an adapter beside the steps that run.

        Nobody stops a thread: who is cancelled meanwhile waits for it, and leaves nothing.

        Raises:
            AdapterRefused: it cannot be served.
        """
        executor = self._loaded()
        if not isinstance(executor, TakesAdapters):
            raise AdapterRefused("these workers take no adapters")
        loading = asyncio.ensure_future(asyncio.to_thread(executor.load_adapter, adapter))
        cancelled = False
        while not loading.done():
            try:
                await asyncio.wait([loading])
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            if loading.exception() is None:
                executor.drop_adapter(adapter.adapter_id)
            raise asyncio.CancelledError
        loading.result()
        self.adapters[adapter.adapter_id] = adapter

    async def drop_adapter(self, adapter_id: str) -> None:
        """Forget an adapter that no step uses any more."""
        self.adapters.pop(adapter_id, None)
        if isinstance(self._executor, TakesAdapters):
            self._executor.drop_adapter(adapter_id)

    async def close(self) -> None:
        """End the thread after the step in flight, and let the executor go."""
        await asyncio.to_thread(self._thread.shutdown)
        self._executor = None

    def _look_for_moves(self, loop: asyncio.AbstractEventLoop) -> None:
        """Acknowledge steps whose moves outlast them, when these have ended."""

        def told(looked: "asyncio.Future[int]") -> None:
            if not looked.cancelled() and looked.exception() is None:
                self._acknowledge(looked.result())

        loop.run_in_executor(self._thread, self._await_moves).add_done_callback(told)

    def _await_moves(self) -> int:
        """In the thread: the newest finished step, once all are or another plan has come."""
        executor = self._loaded()
        assert isinstance(executor, FinishesMoves), "who else tells of moves"
        while executor.finished_step < self._executed and not self._num_waiting:
            time.sleep(_LOOK_SECONDS)
        return executor.finished_step

    def _acknowledge(self, step: int) -> None:
        if step > self._acknowledged:
            self._acknowledged = step
            self._callback()

    def _execute(self, plan: StepPlan) -> StepResult:
        """In the thread: run a step, unless one before it failed. Who waits behind it learns so."""
        self._num_waiting -= 1
        if self._lost is not None:
            raise GroupLost(self._lost)
        self._executed = plan.step
        try:
            return self._loaded().execute(plan)
        except Exception as error:
            self._lost = f"the executor failed in step {plan.step}: {error!r}"
            raise GroupLost(self._lost) from error

    def _loaded(self) -> Executor:
        if self._executor is None:
            raise RuntimeError("the group is closed; make another one")
        return self._executor
