"""The ingress's way to the engines: binds by the central scheduler, streams from engines directly.

Implements `dispatch.Dispatcher`. Keeps a list of groups that the central scheduler sends on every
change; while that process is down, or new and still without groups, it binds by itself to the
group with the fewest of its own requests. Knows no gRPC and no Ray: how to find the central
scheduler is passed in.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count

from blockyard.cluster.dispatch import GroupReport, TokenStream
from blockyard.cluster.engine_link import EngineLink
from blockyard.cluster.messages import (
    AskGroups,
    Bind,
    Bound,
    GroupIdentity,
    Groups,
    ToIngress,
    Unbound,
)
from blockyard.cluster.wire import Codec, Connection, Endpoint, WireError, connect
from blockyard.scheduler.request import RefusalCode, RequestRefused, RequestSpec
from blockyard.workers.description import ModelDescription

__all__ = ["ClusterDispatcher"]

logger = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 5.0
_BIND_SECONDS = 2.0


class ClusterDispatcher:
    """Reaches every group of the cluster. `run` must be running for anything to work."""

    def __init__(
        self,
        models: tuple[ModelDescription, ...],
        locate: Callable[[], Awaitable[Endpoint]],
    ) -> None:
        self._models = models
        self._locate = locate
        self._groups: dict[str, GroupIdentity] = {}
        self._links: dict[str, EngineLink] = {}
        self._connecting = asyncio.Lock()
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
        return tuple(self._groups)

    @property
    def linked(self) -> bool:
        """Whether the central scheduler is there."""
        return self._central is not None

    async def ready(self) -> bool:
        """Whether traffic is welcome: not draining, and a group for each model is reachable."""
        if self._draining:
            return False
        served = {identity.model.name for identity in self._groups.values()}
        return all(model.name in served for model in self._models)

    async def submit(self, model: str, spec: RequestSpec) -> TokenStream:
        """Bind a request to a group and hand it over.

        Raises:
            RequestRefused: the caller's mistake, too much load, or no group ready.
        """
        group_id = await self._bind(model, spec)
        link = await self._link(group_id)
        return await link.submit(spec)

    async def reports(self) -> tuple[GroupReport, ...]:
        """The books of every group, asked for now; a group that is just going is left out."""
        groups = list(self._groups.values())
        answers = await asyncio.gather(
            *(self._report(identity) for identity in groups), return_exceptions=True
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
        retry = _FIRST_RETRY_SECONDS
        while True:
            try:
                codec: Codec[ToIngress] = Codec(ToIngress)
                connection = await connect(await self._locate(), codec)
            except (OSError, TimeoutError) as error:
                logger.info("the central scheduler is not there (%s); trying again", error)
            else:
                retry = _FIRST_RETRY_SECONDS
                await self._stay(connection)
            await asyncio.sleep(retry)
            retry = min(retry * 2, _LAST_RETRY_SECONDS)

    async def close(self) -> None:
        """Hang up on every engine."""
        for link in self._links.values():
            await link.close()

    async def _stay(self, connection: Connection[ToIngress]) -> None:
        self._central = connection
        connection.post(AskGroups())
        try:
            while (message := await connection.receive()) is not None:
                match message:
                    case Groups(identities, draining):
                        self._take_groups(identities)
                        self._draining = draining
                    case Bound(ticket, group_id):
                        answer = self._bindings.get(ticket)
                        if answer is not None and not answer.done():
                            answer.set_result(group_id)
                    case Unbound(ticket, code, text):
                        answer = self._bindings.get(ticket)
                        if answer is not None and not answer.done():
                            answer.set_exception(RequestRefused(code, text))
        except WireError as error:
            logger.warning("the central scheduler spoke out of turn: %s", error)
        finally:
            self._central = None
            for answer in self._bindings.values():
                if not answer.done():
                    answer.cancel()
            await connection.close()

    def _take_groups(self, identities: tuple[GroupIdentity, ...]) -> None:
        """Believe the list, but keep a group whose engine still holds its connection to us.

        A restarted central scheduler learns of the groups only as their engines find it again.
        """
        told = {identity.group_id: identity for identity in identities}
        linked = {
            group_id: link.identity
            for group_id, link in self._links.items()
            if link.open and group_id not in told
        }
        self._groups = told | linked
        self._links = {
            group_id: self._links[group_id]
            for group_id in self._links.keys() & (told.keys() | linked.keys())
        }

    async def _bind(self, model: str, spec: RequestSpec) -> str:
        if self._central is None:
            return self._bind_alone(model)
        ticket = next(self._tickets)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._bindings[ticket] = answer
        self._central.post(Bind(ticket, model, len(spec.prompt_token_ids)))
        try:
            # wait() keeps our own cancellation apart from that of the answer (the link was lost).
            await asyncio.wait([answer], timeout=_BIND_SECONDS)
        finally:
            del self._bindings[ticket]
        if not answer.done() or answer.cancelled():
            return self._bind_alone(model)
        refusal = answer.exception()
        if isinstance(refusal, RequestRefused) and refusal.code is RefusalCode.UNAVAILABLE:
            return self._bind_alone(model)
        return answer.result()

    def _bind_alone(self, model: str) -> str:
        """Without the central scheduler: the group that has the fewest requests of ours."""
        candidates = [
            identity.group_id for identity in self._groups.values() if identity.model.name == model
        ]
        if not candidates or self._draining:
            raise RequestRefused(
                RefusalCode.UNAVAILABLE,
                f"no group serves {model} at the moment; try again shortly",
            )

        def load(group_id: str) -> int:
            link = self._links.get(group_id)
            return link.num_streams if link is not None else 0

        return min(candidates, key=load)

    async def _link(self, group_id: str) -> EngineLink:
        async with self._connecting:
            link = self._links.get(group_id)
            if link is not None and link.open:
                return link
            identity = self._groups.get(group_id)
            try:
                if identity is None:
                    raise ConnectionError("the group has left")
                link = await EngineLink.connect(identity)
            except (OSError, TimeoutError) as error:
                logger.warning("group %s cannot be reached: %s", group_id, error)
                raise RequestRefused(
                    RefusalCode.UNAVAILABLE, "the group cannot be reached; try again shortly"
                ) from error
            self._links[group_id] = link
            return link

    async def _report(self, identity: GroupIdentity) -> GroupReport:
        link = await self._link(identity.group_id)
        return GroupReport(
            group_id=identity.group_id,
            model=identity.model.name,
            device=identity.device,
            dtype=identity.dtype,
            ledger=await link.ledger(),
        )
