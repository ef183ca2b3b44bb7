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

from blockyard.cluster.binding.late_binding import LateBinder
from blockyard.cluster.binding.waiting_messages import AskPlaces, Spent, Withdraw
from blockyard.cluster.books.central_books import AskCentralBooks, CentralBooks, CentralBooksAnswer
from blockyard.cluster.ingress_desk import IngressDesk
from blockyard.cluster.member import Member
from blockyard.cluster.messages import (
    AskGroups,
    Bind,
    Drain,
    Groups,
    Join,
    LedgerPush,
    Release,
    ToCentral,
    Unbound,
)
from blockyard.cluster.preempter import Preempter
from blockyard.cluster.relief import RecentMoves, Relieved, Reliever
from blockyard.cluster.served_request import AskUnplaced, UnplacedAnswer
from blockyard.cluster.states.central_states import ModelStates
from blockyard.cluster.states.model_state import Became, Order
from blockyard.cluster.tracing import NO_TRACER, Tracer
from blockyard.cluster.waiting_room import Unplaced
from blockyard.cluster.wire import Codec, Connection, Endpoint, Listener, WireError, listen
from blockyard.scheduler.group_load import ClusterLoad, GroupLoad
from blockyard.scheduler.placement import Candidate
from blockyard.scheduler.prefix_view import PrefixView
from blockyard.scheduler.request import RefusalCode

__all__ = ["CentralScheduler"]

logger = logging.getLogger(__name__)

_SETTLING_SECONDS = 0.02
"""Between two looks at whether those that wait have got their groups, in a drain."""


class CentralScheduler:
    """Registry of groups and binder of requests. Call `start` before anything else."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, tracer: Tracer = NO_TRACER
    ) -> None:
        self._clock = clock
        self._members: dict[str, Member] = {}
        self._ingresses = IngressDesk()
        self._listener: Listener | None = None
        moves = RecentMoves(clock)
        self.reliever = Reliever(moves)
        self._preempter = Preempter(clock, moves)
        self.binding = LateBinder(self._members, self._preempter, clock, tracer)
        self.states = ModelStates(self._tell_ingresses)
        self._orders: set[asyncio.Task[None]] = set()
        self._starting = asyncio.Lock()
        self._draining = self._engines_drain = False
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

    def load(self, model: str, places: int) -> ClusterLoad:
        """How loaded the groups of a model are that stay, and who waits for one.

        `places` is the limit of running requests of each.
        """
        members = [each for each in self._of_model(model) if not each.draining]
        queued, queued_tokens = self.binding.load(model)
        return ClusterLoad(
            tuple(
                GroupLoad.of(each.candidate.group_id, each.candidate.ledger, places)
                for each in members
            ),
            unbound_requests=self._ingresses.num_unplaced(model),
            queued_requests=queued,
            queued_tokens=queued_tokens,
            resting=bool(members) and all(each.identity.resting for each in members),
        )

    def books(self) -> CentralBooks:
        """What it knows of preemptions."""
        return self._preempter.tally.books(self.reliever.num_moved, self.binding.counts())

    @property
    def names(self) -> frozenset[str]:
        """What clients call their live requests."""
        return self._ingresses.names

    async def close(self) -> None:
        """Stop listening and drop every connection.

        Ingresses are not told that the groups have left: they have not, and go on without us.
        """
        self._closing = True
        self.binding.close()
        if self._listener is not None:
            await self._listener.close()

    async def drain(self, timeout_seconds: float) -> bool:
        """Stop admitting everywhere and wait until no request is live; False on time-out.

        Those that wait for a group were admitted: they are served first.
        """
        self._draining = True
        self._tell_ingresses()
        waited = len(self.binding) > 0
        try:
            async with asyncio.timeout(timeout_seconds):
                while waited and not self.binding.has_settled():
                    await asyncio.sleep(_SETTLING_SECONDS)
                self._let_engines_drain()
                async with self._changed:
                    await self._changed.wait_for(
                        lambda: all(member.is_done for member in self._members.values())
                    )
        except TimeoutError:
            self._let_engines_drain()
            return False
        return True

    def check(self) -> None:
        """Prove that every member is filed under its own id and its books add up."""
        for group_id, member in self._members.items():
            if group_id != member.identity.group_id or group_id != member.candidate.group_id:
                raise AssertionError(f"group {group_id} is filed under another's name")
            member.candidate.ledger.check()
        self.binding.check()

    async def _serve(self, connection: Connection[ToCentral]) -> None:
        member: Member | None = None
        try:
            while (message := await connection.receive()) is not None:
                match message:
                    case Join() if member is None:
                        member = self._join(connection, message)
                    case LedgerPush() if member is not None:
                        self._take_books(member, message)
                    case Relieved(requests) if member is not None:
                        self.reliever.num_moved += requests
                    case Became() if member is not None:
                        self.states.became(member, message)
                    case Order():
                        task = asyncio.create_task(self._carry_out(connection, message))
                        self._orders.add(task)
                        task.add_done_callback(self._orders.discard)
                    case Bind():
                        self._bind(connection, message)
                    case Withdraw(ticket):
                        self.binding.withdraw(connection, ticket)
                    case Spent():
                        self.binding.spent(message)
                    case AskPlaces():
                        self.binding.tell_places(connection, message)
                    case Release(name):
                        self._ingresses.release(name, connection)
                    case Unplaced(model, requests) if connection in self._ingresses:
                        self._ingresses.note_unplaced(connection, model, requests)
                    case AskUnplaced():
                        self._ingresses.search(connection, message)
                    case UnplacedAnswer():
                        self._ingresses.answered(connection, message)
                    case AskCentralBooks(ticket):
                        connection.post(CentralBooksAnswer(ticket, self.books()))
                    case AskGroups(names):
                        self._ingresses.join(connection, names)
                        connection.post(self._groups())
                    case _:
                        raise WireError(f"{type(message).__name__} came out of turn")
                await self._notify()
        except WireError as error:
            logger.warning("a peer spoke out of turn: %s", error)
        finally:
            self._ingresses.leave(connection)
            self.binding.left(connection)
            # An engine that lost its connection may have joined again over another.
            if member is not None and self._members.get(member.identity.group_id) is member:
                del self._members[member.identity.group_id]
                self.states.left(member)
                self._preempter.tally.note_gone(member.identity.group_id)
                self._tell_ingresses()
                await self._notify()

    def _join(self, connection: Connection[ToCentral], message: Join) -> Member:
        group_id = message.group.group_id
        candidate = Candidate(group_id, message.ledger, places=message.group.places)
        prefix = PrefixView(message.prefix_keys)
        member = Member(message.group, candidate, connection.post, message.draining, prefix)
        self._members[group_id] = member
        self._preempter.tally.note_group(group_id, message.ledger)
        self.binding.joined(message)
        if self._engines_drain:
            connection.post(Drain())
        self.states.joined(self._of_model(member.identity.model.name))
        self._tell_ingresses()
        return member

    async def _carry_out(self, connection: Connection[ToCentral], order: Order) -> None:
        connection.post(await self.states.carry_out(order, self._of_model))

    def _of_model(self, model: str) -> list[Member]:
        return [each for each in self._members.values() if each.identity.model.name == model]

    def _bind(self, connection: Connection[ToCentral], request: Bind) -> None:
        ticket = request.ticket
        if self._draining:
            refusal = "the server is shutting down"
            connection.post(Unbound(ticket, RefusalCode.UNAVAILABLE, refusal))
        elif self._ingresses.has_elsewhere(request.name, connection):
            # One ingress asks again when the group it was sent to is not there.
            connection.post(Unbound(ticket, RefusalCode.EXISTS, "the name is in use"))
        else:
            self._ingresses.hold(request.name, connection)
            self.binding.ask(connection, request)

    def _take_books(self, member: Member, books: LedgerPush) -> None:
        """An engine tells how its group stands now."""
        group_id, model = member.identity.group_id, member.identity.model.name
        if self._closing or self._members.get(group_id) is not member:
            return  # a late word: it has joined again over another connection, or all is over
        member.take_books(books.ledger, books.standing, self.binding.load(model)[0] > 0)
        if member.draining is not books.draining:
            member.draining = books.draining
            self._tell_ingresses()
        member.prefix.apply(books.prefix_removed, books.prefix_stored)
        self._preempter.tally.note_group(group_id, books.ledger)
        self.binding.took_books(member)
        if any(other.queues for other in self._members.values()):
            self._relieve(model)

    def _relieve(self, model: str) -> None:
        """Have requests that wait moved to where there is room, or who must make room for them."""
        if self._draining:
            return  # nobody would take what another lets go of
        of_model = {
            other.identity.group_id: other
            for other in self._of_model(model)
            if not other.draining and not other.identity.resting
        }
        if len(of_model) < 2:
            return
        self._preempter.pass_on(of_model)
        relief = self.reliever.relieve(of_model.values())
        if relief is not None:
            self._members[relief.taker].bind(relief.tokens, self._clock())

    def _groups(self) -> Groups:
        identities = tuple(member.identity for member in self._members.values())
        leaving = tuple(name for name, member in self._members.items() if member.draining)
        return Groups(identities, self._draining, leaving)

    def _let_engines_drain(self) -> None:
        self._engines_drain = True
        for member in self._members.values():
            member.post(Drain())

    def _tell_ingresses(self) -> None:
        """Groups are others than before, or stand otherwise."""
        if self._closing:
            return
        self.binding.groups_changed()
        self._ingresses.tell(self._groups())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
