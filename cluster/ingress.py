"""The ingress's way to the engines: binds by the central scheduler, streams from engines directly.

Implements `dispatch.Dispatcher`. While the central scheduler is down, silent, or new and still
without groups, it binds by itself to the group with the fewest of its own requests. Knows no gRPC
and no Ray: how to find the central scheduler is passed in. Units: seconds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count

from blockyard.cluster.dispatch import GroupReport, TokenStream
from blockyard.cluster.group_links import GroupLinks
from blockyard.cluster.messages import (
    AskGroups,
    Bind,
    Bound,
    GroupIdentity,
    Groups,
    ToIngress,
    Unbound,
)
from blockyard.cluster.standing_link import stay_linked
from blockyard.cluster.wire import Codec, Connection, Endpoint
from blockyard.scheduler.request import RefusalCode, RequestRefused, RequestSpec
from blockyard.workers.description import ModelDescription

__all__ = ["BIND_SECONDS", "ClusterDispatcher"]

logger = logging.getLogger(__name__)

SHUTTING_DOWN = "the server is shutting down; ask another one"
BIND_SECONDS = 2.0
"""The central scheduler binds in well under a millisecond; silent for so long, it is stuck."""


class ClusterDispatcher:
    """Reaches every group of the cluster. `run` must be running for anything to work."""

    def __init__(
        self,
        models: tuple[ModelDescription, ...],
        locate: Callable[[], Awaitable[Endpoint]],
    ) -> None:
        self._models = models
        self._locate = locate
        self._groups = GroupLinks()
        self._central: Connection[ToIngress] | None = None
        self._bindings: dict[int, asyncio.Future[str]] = {}
        self._tickets = count(1)
        self._draining = False

    def models(self) -> tuple[ModelDescription, ...]:
        """Models that can be asked for; the first is the default."""
        return self._models

    @property
    def group_ids(self) -> tuple[str, ...]:
        """Groups it knows of."""
        return tuple(self._groups.groups)

    @property
    def linked(self) -> bool:
        """Whether the central scheduler is there."""
        return self._central is not None

    async def ready(self) -> bool:
        """Whether traffic is welcome: not draining, and each model has a group."""
        if self._draining:
            return False
        served = {identity.model.name for identity in self._groups.groups.values()}
        return all(model.name in served for model in self._models)

    async def submit(self, model: str, spec: RequestSpec) -> TokenStream:
        """Bind a request to a group and hand it over.

        A group that turns out to be leaving or lost costs the client nothing while there is another
        one.

        Raises:
            RequestRefused: the caller's mistake, too much load, or no group ready.
        """
        group_id = await self._bind(model, spec)
        tried = {group_id}
        while True:
            try:
                link = await self._groups.link(group_id)
                return await link.submit(spec)
            except RequestRefused as refusal:
                other = self._groups.least_loaded(model, tried)
                if refusal.code is not RefusalCode.UNAVAILABLE or other is None:
                    raise
            group_id = other
            tried.add(group_id)

    async def reports(self, audit: bool = False, memory: bool = False) -> tuple[GroupReport, ...]:
        """The books of every group, asked for now; a group that does not answer is left out."""
        groups = list(self._groups.groups.values())
        answers = await asyncio.gather(
            *(self._report(identity, audit, memory) for identity in groups), return_exceptions=True
        )
        reports: list[GroupReport] = []
        for identity, answer in zip(groups, answers, strict=True):
            if isinstance(answer, GroupReport):
                reports.append(answer)
            elif not isinstance(answer, RequestRefused):
                raise answer
            else:
                logger.info("no books from %s: %s", identity.group_id, answer)
        return tuple(reports)

    async def run(self) -> None:
        """Stay linked to the central scheduler until cancelled."""
        codec: Codec[ToIngress] = Codec(ToIngress)
        await stay_linked(self._locate, codec, self._use)

    async def close(self) -> None:
        """Hang up on every engine."""
        await self._groups.close()

    async def _use(self, connection: Connection[ToIngress]) -> None:
        self._central = connection
        connection.post(AskGroups())
        try:
            while (message := await connection.receive()) is not None:
                self._take(message)
        finally:
            self._central = None
            for answer in self._bindings.values():
                answer.cancel()

    def _take(self, message: ToIngress) -> None:
        match message:
            case Groups(identities, draining):
                self._groups.take(identities)
                self._draining = draining
            case Bound(ticket, group_id):
                answer = self._bindings.get(ticket)
                if answer is not None and not answer.done():
                    answer.set_result(group_id)
            case Unbound(ticket, code, text):
                answer = self._bindings.get(ticket)
                if answer is not None and not answer.done():
                    answer.set_exception(RequestRefused(code, text))

    async def _bind(self, model: str, spec: RequestSpec) -> str:
        central = self._central
        if central is None:
            return self._bind_alone(model)
        ticket = next(self._tickets)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._bindings[ticket] = answer
        central.post(Bind(ticket, model, len(spec.prompt_token_ids)))
        try:
            # wait() keeps our own cancellation apart from that of the answer (the link was lost).
            await asyncio.wait([answer], timeout=BIND_SECONDS)
        finally:
            del self._bindings[ticket]
        if not answer.done():
            # Hang up, or every later request would wait as long, and what is posted would pile up.
            logger.warning("the central scheduler did not answer for %g s", BIND_SECONDS)
            central.abort()
            return self._bind_alone(model)
        if answer.cancelled():
            return self._bind_alone(model)
        refusal = answer.exception()
        if isinstance(refusal, RequestRefused) and refusal.code is RefusalCode.UNAVAILABLE:
            return self._bind_alone(model)
        return answer.result()

    def _bind_alone(self, model: str) -> str:
        """Without the central scheduler: the group that has the fewest requests of ours."""
        if self._draining:
            raise RequestRefused(RefusalCode.UNAVAILABLE, SHUTTING_DOWN)
        group_id = self._groups.least_loaded(model, ())
        if group_id is None:
            raise RequestRefused(
                RefusalCode.UNAVAILABLE,
                f"no group serves {model} at the moment; try again shortly",
            )
        return group_id

    async def _report(self, identity: GroupIdentity, audit: bool, memory: bool) -> GroupReport:
        link = await self._groups.link(identity.group_id)
        return GroupReport(
            group_id=identity.group_id,
            model=identity.model.name,
            device=identity.device,
            dtype=identity.dtype,
            books=await link.books(audit, memory),
        )
