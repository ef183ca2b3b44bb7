"""Adapters that one engine's group has loaded: loaded and withdrawn while requests run.

Who is withdrawn gets no new requests. Those that run with it finish first; then it is dropped.
Requests are told apart by the adapter's version too, so one that is loaded anew under a name that
is being withdrawn is another one. Knows no ranks and no wires.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from blockyard.scheduler.block_keys import PrefixExtras
from blockyard.scheduler.request import (
    FinishReason,
    RefusalCode,
    RequestRefused,
    RequestSpec,
    RequestUpdate,
)
from blockyard.scheduler.snapshot import RequestSnapshot
from blockyard.workers.adapter_description import AdapterDescription, AdapterRefused

if TYPE_CHECKING:
    from blockyard.cluster.engine import Engine

__all__ = ["AdapterHost", "EngineAdapters"]

logger = logging.getLogger(__name__)

_LOST = "its adapter could not be loaded again after a worker was lost; send it again"


class AdapterHost(Protocol):
    """Who has the ranks load adapters."""

    async def load_adapter(self, adapter: AdapterDescription) -> None:
        """Load it on every rank.

        Raises:
            AdapterRefused: it cannot be served; no rank has it.
        """
        ...

    async def drop_adapter(self, adapter_id: str) -> None:
        """Have every rank forget it; no step uses it any more."""
        ...


class EngineAdapters:
    """An engine listener. Until `host` is set there are none to be had."""

    def __init__(self, engine: "Engine") -> None:
        self.host: AdapterHost | None = None
        self._engine = engine
        self._served: dict[str, AdapterDescription] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        # Of requests that have an adapter: its id.
        self._users: dict[str, str] = {}
        # Which of them the ranks are being told to forget; it is too late to go on with that one.
        self._dropping = ""
        self._loading = asyncio.Lock()
        self._news = asyncio.Event()
        self._steps_ended = 0
        self._num_late = 0  # requests that came for one that was leaving
        engine.listen(self)

    @property
    def served(self) -> tuple[AdapterDescription, ...]:
        """Adapters that requests may ask for."""
        return tuple(self._served.values())

    @property
    def leaving(self) -> tuple[str, ...]:
        """Ids of those that were withdrawn and are still used."""
        return tuple(self._leaving)

    def check(self, extras: PrefixExtras, begun: bool) -> None:
        """Refuse a request whose adapter is not here.

        Args:
            extras: of the request.
            begun: it has produced something elsewhere, and goes on with what is being withdrawn.

        Raises:
            RequestRefused: UNAVAILABLE; another group may have it.
        """
        if not extras.adapter:
            return
        served = self._served.get(extras.adapter)
        if served is not None and served.adapter_id == extras.adapter_id:
            return
        if begun and extras.adapter_id in self._leaving and extras.adapter_id != self._dropping:
            return
        reason = "was replaced by another of its name" if served is not None else "is not loaded"
        raise RequestRefused(
            RefusalCode.UNAVAILABLE, f"the adapter {extras.adapter!r} {reason} here", "model"
        )

    async def load(self, adapter: AdapterDescription) -> None:
        """Serve an adapter; nothing happens when it is served already.

        Raises:
            AdapterRefused: it cannot be, or another one of its name is.
        """
        async with self._loading:
            served = self._served.get(adapter.name)
            if served is not None:
                if served.version != adapter.version:
                    raise AdapterRefused(
                        f"another adapter is loaded as {adapter.name!r}; unload it first"
                    )
                return
            leaving = self._leaving.pop(adapter.adapter_id, None)
            if leaving is not None:
                # It is still there: nobody needs to know that it was to go.
                leaving.cancel()
                await asyncio.gather(leaving, return_exceptions=True)
            if self.host is None:
                raise AdapterRefused("this server takes no adapters")
            await self.host.load_adapter(adapter)
            self._served[adapter.name] = adapter

    def withdraw(self, name: str) -> bool:
        """Take no more requests for an adapter; it is dropped once those that run have ended.

        Whether it was served.
        """
        adapter = self._served.pop(name, None)
        if adapter is None:
            return False
        drain = asyncio.create_task(self._drain(adapter.adapter_id), name=f"drain-{name}")
        self._leaving[adapter.adapter_id] = drain
        return True

    async def become(self, wanted: Sequence[AdapterDescription]) -> None:
        """Serve exactly these.

        Raises:
            AdapterRefused: one of them cannot be; the others are as wanted.
        """
        names = {adapter.name: adapter.version for adapter in wanted}
        for adapter in self.served:
            if names.get(adapter.name) != adapter.version:
                self.withdraw(adapter.name)
        refusal: AdapterRefused | None = None
        for adapter in wanted:
            try:
                await self.load(adapter)
            except AdapterRefused as error:
                refusal = error
        if refusal is not None:
            raise refusal

    def close(self) -> None:
        """Wait for nobody any more."""
        for drain in self._leaving.values():
            drain.cancel()

    async def wait_dropped(self) -> None:
        """Wait until whatever was withdrawn is gone."""
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)

    def lost(self, adapter_id: str) -> None:
        """The ranks have it no more: requests that run with it end."""
        logger.warning("adapter %s is lost", adapter_id)
        self._served = {
            name: each for name, each in self._served.items() if each.adapter_id != adapter_id
        }
        users = [request for request, used in self._users.items() if used == adapter_id]
        for request_id in users:
            choices = {
                choice
                for each in self._engine.explain(request_id)
                for choice in (each.choice, *each.begins)
            }
            self._engine.abort(request_id)
            self._engine.deliver(
                [
                    RequestUpdate(request_id, (), FinishReason.ERROR, _LOST, choice=choice)
                    for choice in sorted(choices)
                ]
            )

    def submitted(self, spec: RequestSpec) -> None:
        """A request was taken."""
        if spec.extras.adapter:
            self._users[spec.request_id] = spec.extras.adapter_id
            self._num_late += spec.extras.adapter_id in self._leaving

    def resumed(self, snapshot: RequestSnapshot) -> None:
        """A request goes on here."""
        self.submitted(snapshot.spec)

    def stepped(self, updates: Sequence[RequestUpdate]) -> None:
        """A step has ended."""
        self._steps_ended += 1
        if self._users:
            for update in updates:
                if update.finish_reason is not None:
                    self._forget_ended(update.request_id)
        self._news.set()

    def aborted(self, request_id: str, choice: int | None) -> None:
        """A request, or a choice of it, was given up."""
        self._forget_ended(request_id)
        self._news.set()

    def _forget_ended(self, request_id: str) -> None:
        if request_id in self._users and not self._engine.serves(request_id):
            del self._users[request_id]

    async def _drain(self, adapter_id: str) -> None:
        while True:
            late = self._num_late
            await self._unused(adapter_id)
            async with self._loading:
                if late != self._num_late:
                    continue  # somebody has come meanwhile who had begun elsewhere
                self._dropping = adapter_id
                try:
                    if self.host is not None:
                        await self.host.drop_adapter(adapter_id)
                finally:
                    self._dropping = ""
                    del self._leaving[adapter_id]
                return

    async def _unused(self, adapter_id: str) -> None:
        """Return when no request has it, and no step under way either."""
        while adapter_id in self._users.values():
            await self._next_news()
        # Steps under way may still compute rows of requests that were given up.
        last = self._steps_ended + self._engine.num_under_way
        while self._steps_ended < last and self._engine.num_under_way:
            await self._next_news()

    async def _next_news(self) -> None:
        self._news.clear()
        await self._news.wait()
