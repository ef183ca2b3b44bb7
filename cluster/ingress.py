"""The ingress's way to the engines: binds by the central scheduler, streams from engines directly.

Implements `dispatch.Dispatcher`. While the central scheduler is down, silent, or new and still
without groups, it binds by itself to the group with the fewest of its own requests. Knows no gRPC
and no Ray: how to find the central scheduler is passed in. Units: seconds.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from blockyard.cluster.between_groups import BetweenGroups, CalledOff, CalledOffStream
from blockyard.cluster.binder import CentralBinder
from blockyard.cluster.books.arrival_log import ArrivalBatch
from blockyard.cluster.books.central_books import CentralBooks
from blockyard.cluster.books.request_meter import RequestMeter
from blockyard.cluster.dispatch import GroupReport, GroupYard, TokenStream
from blockyard.cluster.engine_stream import EngineStream
from blockyard.cluster.group_links import GroupLinks
from blockyard.cluster.journal import Journal
from blockyard.cluster.messages import GroupIdentity, Groups
from blockyard.cluster.placing import Asked, Placer
from blockyard.cluster.relief import RequestMoved
from blockyard.cluster.resuming_stream import ResumingStream
from blockyard.cluster.served_request import AskUnplaced, ServedRequest
from blockyard.cluster.states.model_state import refuse_unless_done
from blockyard.cluster.waiting_room import WaitingRoom
from blockyard.cluster.wire import Endpoint
from blockyard.scheduler.block_keys import PromptKeys
from blockyard.scheduler.request import RequestRefused, RequestSpec
from blockyard.workers.adapter_description import AdapterDescription
from blockyard.workers.description import ModelDescription

__all__ = ["ClusterDispatcher"]

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class ClusterDispatcher:
    """Reaches every group of the cluster. `run` must be running for anything to work."""

    def __init__(
        self,
        models: tuple[ModelDescription, ...],
        locate: Callable[[], Awaitable[Endpoint]],
        resume_seconds: float = 0.0,
        on_demand: Collection[str] = (),
        adapters: Mapping[str, tuple[AdapterDescription, ...]] | None = None,
    ) -> None:
        """Reach groups of `models`; `locate` finds the central scheduler.

        A live request whose group is lost waits up to `resume_seconds` for one that can go on with
        it; a new one waits as long if its model is one of those whose groups come `on_demand`.
        `adapters` are those that each model begins with.
        """
        self._models = models
        self._resume_seconds = resume_seconds
        self._on_demand = frozenset(on_demand)
        self._groups = GroupLinks(adapters)
        self._meter = RequestMeter()
        self._binder = CentralBinder(locate, self._take_groups, self._find_unplaced)
        self._room = WaitingRoom(self._binder.note_unplaced)
        self._between = BetweenGroups()
        self._placer = Placer(self._groups, self._binder, self._room, resume_seconds)

    def models(self) -> tuple[ModelDescription, ...]:
        """Models that can be asked for; the first is the default."""
        return self._models

    def adapters(self, model: str) -> tuple[AdapterDescription, ...]:
        """Adapters that requests for a model may ask for."""
        return self._groups.adapters(model)

    async def load_adapter(self, model: str, adapter: AdapterDescription) -> None:
        """See `AdapterDirectory`. Raises `RequestRefused`."""
        refuse_unless_done(await self._binder.order(model, False, load=adapter))

    async def unload_adapter(self, model: str, name: str) -> None:
        """See `AdapterDirectory`. Raises `RequestRefused`."""
        refuse_unless_done(await self._binder.order(model, False, unload=name))

    @property
    def group_ids(self) -> tuple[str, ...]:
        """Groups it knows of."""
        return tuple(self._groups.groups)

    @property
    def linked(self) -> bool:
        """Whether the central scheduler is there."""
        return self._binder.linked

    @property
    def binder(self) -> CentralBinder:
        """Its link to the central scheduler."""
        return self._binder

    @property
    def links(self) -> GroupLinks:
        """Its connections to engines."""
        return self._groups

    async def ready(self) -> bool:
        """Whether traffic is welcome: each model is awake in a group that stays, or gets one."""
        if self._placer.draining:
            return False
        served = self._groups.serving(self._on_demand if self._binder.linked else ())
        return all(model.name in served for model in self._models)

    @property
    def meters(self) -> tuple[RequestMeter, ...]:
        """What was counted of the requests handed over here."""
        return (self._meter,)

    async def submit(self, model: str, spec: RequestSpec) -> TokenStream:
        """Bind a request to a group and hand it over.

        A group that turns out to be leaving or lost costs the client nothing while there is another
        one, before the first token and after it.

        Raises:
            RequestRefused: the caller's mistake, too much load, no group ready, or the name is in
                use.
        """
        return await self._meter.follow(model, spec, self._submit(model, spec))

    async def _submit(self, model: str, spec: RequestSpec) -> TokenStream:
        keys = PromptKeys(spec.prompt_token_ids, spec.extras) if spec.use_prefix_cache else None
        name = f"{spec.tenant}/{spec.name}" if spec.name else ""
        began_at = time.monotonic()
        asked = Asked(model, spec, keys, name, began_at)
        if name:
            self._binder.hold(name)

        def end() -> None:
            if name:
                self._binder.release(name)

        try:
            seconds = self._resume_seconds if model in self._on_demand else 0.0
            search = self._placer.find_place(asked, seconds)
            group_id, stream = await self._between.travel(spec, search)
        except CalledOff:
            end()
            return CalledOffStream(spec, range(spec.num_choices))
        except BaseException:
            end()
            raise
        max_tokens = spec.sampling.max_tokens or stream.accepted.result()
        assert max_tokens is not None  # one of the two has it
        journal = Journal(spec, max_tokens, began_at)
        lost: list[str] = []

        async def move(moved: RequestMoved | None) -> EngineStream:
            nonlocal group_id
            if moved is None or not moved.taker:
                lost.append(group_id)
            search = self._placer.find_place(asked, self._resume_seconds, journal, lost, moved)
            group_id, stream = await self._between.travel(spec, search, lambda: journal.choices)
            return stream

        def finish() -> None:
            end()
            self._binder.note_spent(model, spec.priority, spec.tenant, journal.num_tokens)

        return ResumingStream(stream, journal, move, finish)

    async def reports(self, audit: bool = False, memory: bool = False) -> tuple[GroupReport, ...]:
        """The books of every group, asked for now; a group that does not answer is left out."""
        return await self._of_every_group(lambda group: self._report(group, audit, memory))

    async def yards(self, group_id: str, max_cells: int) -> tuple[GroupYard, ...]:
        """The books of every group, by model and id, and a picture of one group's pool.

        When no group has the id `group_id` it is the first's. Who does not answer is left out.
        """
        groups = self._groups.groups
        order = sorted(groups, key=lambda name: (groups[name].model.name, name))
        drawn = group_id if group_id in groups else next(iter(order), "")
        yards = await self._of_every_group(
            lambda group: self._yard(group, max_cells if group.group_id == drawn else 0)
        )
        return tuple(sorted(yards, key=lambda yard: order.index(yard.report.group_id)))

    async def arrivals(self, after: Mapping[str, int]) -> dict[str, ArrivalBatch]:
        """Requests that have ended in each group, by its id; see `ArrivalLog.take`."""

        async def ask(group: GroupIdentity) -> tuple[str, ArrivalBatch]:
            link = await self._groups.link(group.group_id)
            return group.group_id, await link.arrivals(after.get(group.group_id, 0))

        return dict(await self._of_every_group(ask))

    async def requests(
        self, tenant: str, name: str, call_off: bool = False
    ) -> tuple[ServedRequest, ...]:
        """A tenant's requests with a name, whoever has them and whichever ingress sent them."""
        found = await self._unplaced(tenant, name, call_off)

        async def ask(group: GroupIdentity) -> tuple[ServedRequest, ...]:
            link = await self._groups.link(group.group_id)
            return await link.requests(tenant, name, call_off)

        for served in await self._of_every_group(ask):
            found += served
        # It may have left a group before that was asked, and have been at another before.
        return found or await self._unplaced(tenant, name, call_off)

    async def _unplaced(self, tenant: str, name: str, call_off: bool) -> tuple[ServedRequest, ...]:
        """Those that no group has, here and at the other ingresses."""
        own = await self._find_own(tenant, name, call_off)
        return own + await self._binder.unplaced(tenant, name, call_off)

    async def _of_every_group(
        self, ask: Callable[[GroupIdentity], Awaitable[Answer]]
    ) -> tuple[Answer, ...]:
        groups = list(self._groups.groups.values())
        found = await asyncio.gather(*(ask(group) for group in groups), return_exceptions=True)
        answers: list[Answer] = []
        for group, answer in zip(groups, found, strict=True):
            if not isinstance(answer, BaseException):
                answers.append(answer)
            elif not isinstance(answer, RequestRefused):
                raise answer
            else:
                logger.info("no books from %s: %s", group.group_id, answer)
        return tuple(answers)

    async def central_books(self) -> CentralBooks | None:
        """What the central scheduler knows of preemptions; None when it does not say."""
        return await self._binder.books()

    async def run(self) -> None:
        """Stay linked to the central scheduler until cancelled."""
        await self._binder.run()

    async def close(self) -> None:
        """Hang up on every engine."""
        await self._groups.close()

    async def _find_own(self, tenant: str, name: str, call_off: bool) -> tuple[ServedRequest, ...]:
        places = await self._binder.places(self._between.ids(tenant, name))
        return self._between.find(tenant, name, call_off, places)

    async def _find_unplaced(self, asked: AskUnplaced) -> tuple[ServedRequest, ...]:
        return await self._find_own(asked.tenant, asked.name, asked.call_off)

    def _take_groups(self, message: Groups) -> None:
        self._groups.take(message.groups, message.leaving)
        self._placer.draining = message.draining
        self._room.note_change()

    async def _report(self, identity: GroupIdentity, audit: bool, memory: bool) -> GroupReport:
        link = await self._groups.link(identity.group_id)
        return GroupReport(
            group_id=identity.group_id,
            model=identity.model.name,
            device=identity.device,
            dtype=identity.dtype,
            books=await link.books(audit, memory),
        )

    async def _yard(self, identity: GroupIdentity, max_cells: int) -> GroupYard:
        report = await self._report(identity, audit=False, memory=False)
        if not max_cells:
            return GroupYard(report, None)
        link = await self._groups.link(identity.group_id)
        return GroupYard(report, await link.draw_yard(max_cells))
