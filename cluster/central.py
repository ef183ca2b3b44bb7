"""The central scheduler: the one process that sees every group's books.

Engines join it and push their books; ingresses ask it which group to use, and are told of every
change of the groups. On the path of a request, never of a token. All its state comes from the
engines, so a restarted one knows everything again as soon as they have joined. Knows no Ray.
Units: tokens, seconds.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from blockyard.cluster.messages import (
    AskGroups,
    Bind,
    Bound,
    Drain,
    GroupIdentity,
    Groups,
    Join,
    LedgerPush,
    Release,
    ToCentral,
    Unbound,
)
from blockyard.cluster.relief import Relieved, Reliever
from blockyard.cluster.tracing import NO_TRACER, Tracer
from blockyard.cluster.waiting_room import Unplaced
from blockyard.cluster.wire import Codec, Connection, Endpoint, Listener, WireError, listen
from blockyard.scheduler.group_load import GroupLoad
from blockyard.scheduler.placement import Candidate, choose_group
from blockyard.scheduler.prefix_view import PrefixView
from blockyard.scheduler.request import RefusalCode

__all__ = ["BINDING_SECONDS", "CentralScheduler"]

logger = logging.getLogger(__name__)

BINDING_SECONDS = 1.0
"""A request that was bound is in its group's books long before; if not, it never got there."""


@dataclass(slots=True)
class _Member:
    """One engine that has joined."""

    identity: GroupIdentity
    candidate: Candidate
    connection: Connection[ToCentral]
    draining: bool
    prefix: PrefixView
    """Blocks that can be found there."""
    bound_at: float = 0.0
    """When a request was last bound to it."""

    def post(self, message: object) -> None:
        """Tell its engine."""
        self.connection.post(message)

    def candidate_for(self, request: Bind) -> Candidate:
        """How it looks to a request: what of its prompt is known there, too."""
        if not request.block_keys or request.block_size != self.identity.block_size:
            return self.candidate
        known = self.prefix.num_known(request.block_keys)
        if not known:
            return self.candidate
        # Every group is looked at for every request: `replace` would take longer than the rest.
        candidate = self.candidate
        return Candidate(candidate.group_id, candidate.ledger, candidate.bound_tokens, known)


class CentralScheduler:
    """Registry of groups and binder of requests. Call `start` before anything else."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, tracer: Tracer = NO_TRACER
    ) -> None:
        self._clock = clock
        self._tracer = tracer
        self._members: dict[str, _Member] = {}
        # Each with how many of its requests wait for a group, by model.
        self._ingresses: dict[Connection[ToCentral], dict[str, int]] = {}
        # What clients call their live requests, and the ingress that has each.
        self._names: dict[str, Connection[ToCentral]] = {}
        self._listener: Listener | None = None
        self.reliever = Reliever(clock)
        self._starting = asyncio.Lock()
        self._draining = False
        self._closing = False
        self._changed = asyncio.Condition()

    async def start(self, host: str) -> None:
        """Listen on `host`; asked for by every engine and ingress, perhaps at the same moment."""
        async with self._starting:
            if self._listener is None:
                self._listener = await listen(Codec(ToCentral), self._serve, host)

    @property
    def endpoint(self) -> Endpoint:
        """Where engines and ingresses connect."""
        assert self._listener is not None
        return self._listener.endpoint

    @property
    def group_ids(self) -> tuple[str, ...]:
        """Groups that have joined."""
        return tuple(self._members)

    def num_known_blocks(self) -> int:
        """Blocks that can be found, in all groups together."""
        return sum(len(member.prefix) for member in self._members.values())

    def num_free_blocks(self) -> int:
        """Blocks that can be had now, in all groups together, as far as their books tell."""
        return sum(member.candidate.free_blocks for member in self._members.values())

    def load(self, model: str, places: int) -> tuple[tuple[GroupLoad, ...], int]:
        """How loaded the groups of a model are that take requests, and requests that wait for one.

        `places` is the limit of running requests of each.
        """
        loads = tuple(
            GroupLoad.of(group_id, member.candidate.ledger, places)
            for group_id, member in self._members.items()
            if member.identity.model.name == model and not member.draining
        )
        return loads, sum(waiting.get(model, 0) for waiting in self._ingresses.values())

    @property
    def names(self) -> frozenset[str]:
        """What clients call their live requests."""
        return frozenset(self._names)

    async def close(self) -> None:
        """Stop listening and drop every connection.

        Ingresses are not told that the groups have left: they have not, and go on without us.
        """
        self._closing = True
        if self._listener is not None:
            await self._listener.close()

    async def drain(self, timeout_seconds: float) -> bool:
        """Stop admitting everywhere and wait until no request is live; False on time-out."""
        self._draining = True
        for member in self._members.values():
            member.connection.post(Drain())
        self._tell_ingresses()
        try:
            async with asyncio.timeout(timeout_seconds), self._changed:
                await self._changed.wait_for(lambda: all(map(_is_done, self._members.values())))
        except TimeoutError:
            return False
        return True

    def check(self) -> None:
        """Prove that every member is filed under its own id and its books add up."""
        for group_id, member in self._members.items():
            if group_id != member.identity.group_id or group_id != member.candidate.group_id:
                raise AssertionError(f"group {group_id} is filed under another's name")
            member.candidate.ledger.check()

    async def _serve(self, connection: Connection[ToCentral]) -> None:
        member: _Member | None = None
        try:
            while (message := await connection.receive()) is not None:
                match message:
                    case Join() if member is None:
                        member = self._join(connection, message)
                    case LedgerPush(ledger, draining, removed, stored) if member is not None:
                        member.candidate = Candidate(member.identity.group_id, ledger)
                        member.draining = draining
                        member.prefix.apply(removed, stored)
                        self._relieve(member.identity.model.name)
                    case Relieved(requests) if member is not None:
                        self.reliever.num_moved += requests
                    case Bind():
                        connection.post(self._traced_bind(connection, message))
                    case Release(name):
                        if self._names.get(name) is connection:
                            del self._names[name]
                    case Unplaced(model, requests) if connection in self._ingresses:
                        self._ingresses[connection][model] = requests
                    case AskGroups(names):
                        self._ingresses.setdefault(connection, {})
                        for name in names:
                            self._names.setdefault(name, connection)
                        connection.post(self._groups())
                    case _:
                        raise WireError(f"{type(message).__name__} came out of turn")
                await self._notify()
        except WireError as error:
            logger.warning("a peer spoke out of turn: %s", error)
        finally:
            self._ingresses.pop(connection, None)
            held = [name for name, holder in self._names.items() if holder is connection]
            for name in held:
                del self._names[name]
            # An engine that lost its connection may have joined again over another.
            if member is not None and self._members.get(member.identity.group_id) is member:
                del self._members[member.identity.group_id]
                self._tell_ingresses()
                await self._notify()

    def _join(self, connection: Connection[ToCentral], message: Join) -> _Member:
        group_id = message.group.group_id
        candidate = Candidate(group_id, message.ledger)
        prefix = PrefixView(message.prefix_keys)
        member = _Member(message.group, candidate, connection, message.draining, prefix)
        self._members[group_id] = member
        if self._draining:
            connection.post(Drain())
        self._tell_ingresses()
        return member

    def _traced_bind(self, connection: Connection[ToCentral], request: Bind) -> Bound | Unbound:
        if not request.traceparent:
            return self._bind(connection, request)
        span = self._tracer.begin("bind", request.traceparent)
        answer = self._bind(connection, request)
        if isinstance(answer, Bound):
            span.set(group=answer.group_id)
        else:
            span.set(refused=answer.code.value)
        span.end()
        return answer

    def _bind(self, connection: Connection[ToCentral], request: Bind) -> Bound | Unbound:
        if self._draining:
            return Unbound(request.ticket, RefusalCode.UNAVAILABLE, "the server is shutting down")
        # One ingress asks again when the group it was sent to is not there.
        if self._names.get(request.name, connection) is not connection:
            return Unbound(request.ticket, RefusalCode.EXISTS, "the name is in use")
        now = self._clock()
        for member in self._members.values():
            if member.candidate.bound_tokens and now - member.bound_at > BINDING_SECONDS:
                member.candidate = replace(member.candidate, bound_tokens=0)
        candidates = [
            member.candidate_for(request)
            for member in self._members.values()
            if member.identity.model.name == request.model and not member.draining
        ]
        group_id = choose_group(candidates, request.prompt_tokens)
        if group_id is None:
            return Unbound(
                request.ticket,
                RefusalCode.UNAVAILABLE,
                f"no group serves {request.model} at the moment; try again shortly",
            )
        member = self._members[group_id]
        member.bound_at = now
        known = member.candidate_for(request).known_blocks * request.block_size
        bound = member.candidate.bound_tokens + max(0, request.prompt_tokens - known)
        member.candidate = replace(member.candidate, bound_tokens=bound)
        if request.name:
            self._names[request.name] = connection
        return Bound(request.ticket, group_id)

    def _relieve(self, model: str) -> None:
        """Have requests that wait moved to where there is room, if there is."""
        if self._draining:
            return  # nobody would take what another lets go of
        of_model = [m for m in self._members.values() if m.identity.model.name == model]
        relief = self.reliever.relieve(of_model) if len(of_model) > 1 else None
        if relief is not None:
            taker = self._members[relief.taker]
            taker.bound_at = self._clock()
            bound = taker.candidate.bound_tokens + relief.tokens
            taker.candidate = replace(taker.candidate, bound_tokens=bound)

    def _groups(self) -> Groups:
        identities = tuple(member.identity for member in self._members.values())
        return Groups(identities, self._draining)

    def _tell_ingresses(self) -> None:
        if self._closing:
            return
        groups = self._groups()
        for ingress in self._ingresses:
            ingress.post(groups)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _is_done(member: _Member) -> bool:
    requests = member.candidate.ledger.requests
    return member.draining and not (requests.running or requests.waiting or requests.parked)
