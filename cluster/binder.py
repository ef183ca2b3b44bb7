"""An ingress's standing link to the central scheduler: asks which group to use, holds names.

While the central scheduler is down or silent it answers nothing, and whoever asks decides alone.
Names that clients give live requests are held there, so that no ingress takes the same one twice;
those of this ingress it knows itself. Knows no engines. Units: seconds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from itertools import count
from typing import Any, TypeVar

from msgspec.structs import replace

from blockyard.cluster.binding.bind_refusals import name_in_use, too_late
from blockyard.cluster.binding.pending_bindings import Binding, PendingBindings
from blockyard.cluster.binding.spent_tokens import SpentTokens
from blockyard.cluster.binding.waiting_messages import AskPlaces, Places, Queued, Spent, Withdraw
from blockyard.cluster.books.central_books import AskCentralBooks, CentralBooks, CentralBooksAnswer
from blockyard.cluster.messages import (
    AskGroups,
    Bind,
    Bound,
    Groups,
    Release,
    ToIngress,
    Unbound,
)
from blockyard.cluster.open_questions import OpenQuestions, Ticketed
from blockyard.cluster.served_request import AskUnplaced, ServedRequest, UnplacedAnswer
from blockyard.cluster.standing_link import stay_linked
from blockyard.cluster.states.model_state import Order, Ordered
from blockyard.cluster.waiting_room import Unplaced
from blockyard.cluster.wire import Codec, Connection, Endpoint
from blockyard.scheduler.request import RefusalCode, RequestRefused
from blockyard.workers.adapter_description import AdapterDescription

__all__ = ["BIND_SECONDS", "CentralBinder"]

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=Ticketed)

BIND_SECONDS = 2.0
"""The central scheduler binds in well under a millisecond; silent for so long, it is stuck."""


async def _nothing(asked: AskUnplaced) -> tuple[ServedRequest, ...]:
    return ()


class CentralBinder:
    """Asks the central scheduler. `run` must be running.

    Args:
        locate: finds the central scheduler.
        take_groups: told of all groups whenever they change.
        find_unplaced: finds requests of this ingress that no group has, for other ingresses.
    """

    def __init__(
        self,
        locate: Callable[[], Awaitable[Endpoint]],
        take_groups: Callable[[Groups], None],
        find_unplaced: Callable[[AskUnplaced], Awaitable[tuple[ServedRequest, ...]]] = _nothing,
    ) -> None:
        self._locate = locate
        self._take_groups = take_groups
        self._find_unplaced = find_unplaced
        self._central: Connection[ToIngress] | None = None
        self._bindings = PendingBindings()
        self._spent = SpentTokens(self._post)
        self._questions = OpenQuestions()
        self._tickets = count(1)
        self._names: set[str] = set()
        self._unplaced: dict[str, int] = {}

    @property
    def linked(self) -> bool:
        """Whether the central scheduler is there."""
        return self._central is not None

    async def run(self) -> None:
        """Stay linked until cancelled."""
        codec: Codec[ToIngress] = Codec(ToIngress)
        await stay_linked(self._locate, codec, self._use)

    def hold(self, name: str) -> None:
        """Hold a name, once among the requests of this ingress.

        Raises:
            RequestRefused: EXISTS when it is held.
        """
        if name in self._names:
            raise name_in_use()
        self._names.add(name)

    def release(self, name: str) -> None:
        """Let a name go, here and at the central scheduler."""
        self._names.discard(name)
        if self._central is not None:
            self._central.post(Release(name))

    def note_unplaced(self, model: str, requests: int) -> None:
        """So many requests wait here for a group of a model; the central scheduler may get one."""
        self._unplaced[model] = requests
        if self._central is not None:
            self._central.post(Unplaced(model, requests))

    def note_spent(self, model: str, priority: int, tenant: str, tokens: int) -> None:
        """A request has produced so many tokens."""
        self._spent.note(model, priority, tenant, tokens)

    async def bind(self, asked: Bind) -> Binding:
        """The group to use; none when the central scheduler does not say.

        While all groups are full the request waits there, until its client's time is over.

        Args:
            asked: the request; its ticket does not matter. Its name is held from now on, unless it
                is refused.

        Raises:
            RequestRefused: too much load, its deadline cannot be met, or its name is held
                elsewhere.
        """
        central = self._central
        if central is None:
            return Binding(None)
        ticket, waits = next(self._tickets), False
        answer = self._bindings.begin(ticket, asked.request_id)
        central.post(replace(asked, ticket=ticket))
        try:
            if not await _answered(central, answer):
                return Binding(None)
            group_id = answer.result()
            if group_id is None:
                waits = True
                group_id = await self._bindings.last(ticket, asked.seconds)
            return Binding(group_id, waits)
        except TimeoutError:
            raise too_late() from None
        except RequestRefused as refusal:
            if refusal.code is not RefusalCode.UNAVAILABLE:
                raise
            return Binding(None, waits)
        finally:
            if not self._bindings.end(ticket) and self._central is central:
                central.post(Withdraw(ticket))

    async def places(self, request_ids: Collection[str]) -> dict[str, int]:
        """How many are served before each of those that wait at the central scheduler."""
        waiting = {t: i for t, i in self._bindings.waiting().items() if i in request_ids}
        if not waiting:
            return {}
        told = await self._ask(Places, lambda ticket: AskPlaces(ticket, tuple(waiting)))
        return {} if told is None else {waiting[t]: place for t, place in told.places.items()}

    async def unplaced(self, tenant: str, name: str, call_off: bool) -> tuple[ServedRequest, ...]:
        """What other ingresses have of a tenant's requests with a name that no group has."""
        central = self._central
        if central is None:
            return ()
        ticket = next(self._tickets)
        with self._questions.asked(ticket, UnplacedAnswer) as answer:
            central.post(AskUnplaced(ticket, tenant, name, call_off))
            # An ingress that does not answer says nothing against the central scheduler.
            await asyncio.wait([answer], timeout=BIND_SECONDS)
            return answer.result().requests if answer.done() and not answer.cancelled() else ()

    async def books(self) -> CentralBooks | None:
        """The central scheduler's books; None when it does not say."""
        told = await self._ask(CentralBooksAnswer, AskCentralBooks)
        return told.books if told is not None else None

    async def order(
        self,
        model: str,
        asleep: bool,
        directory: str | None = None,
        load: AdapterDescription | None = None,
        unload: str = "",
    ) -> Ordered | None:
        """Have a model's groups become something; see `Order`. It takes as long as it takes.

        None when the central scheduler is not there, or goes away before it has answered.
        """
        central = self._central
        if central is None:
            return None
        ticket = next(self._tickets)
        with self._questions.asked(ticket, Ordered) as answer:
            central.post(Order(ticket, model, asleep, directory, load, unload))
            await asyncio.wait([answer])
            return None if answer.cancelled() else answer.result()

    async def _ask(
        self,
        kind: type[Answer],
        question: Callable[[int], AskCentralBooks | AskPlaces],
    ) -> Answer | None:
        """What the central scheduler answers a question with a ticket, if it does."""
        central = self._central
        if central is None:
            return None
        ticket = next(self._tickets)
        with self._questions.asked(ticket, kind) as answer:
            central.post(question(ticket))
            return answer.result() if await _answered(central, answer) else None

    def _post(self, message: Spent) -> None:
        if self._central is not None:
            self._central.post(message)

    async def _watch(self) -> None:
        """Whoever waits there is told if nobody is there any more."""
        while True:
            await asyncio.sleep(BIND_SECONDS)
            if self._bindings.waiting():
                await self._ask(Places, AskPlaces)

    async def _answer_unplaced(self, connection: Connection[ToIngress], asked: AskUnplaced) -> None:
        found = await self._find_unplaced(asked)
        connection.post(UnplacedAnswer(asked.ticket, found))

    async def _use(self, connection: Connection[ToIngress]) -> None:
        self._central = connection
        asides = {asyncio.create_task(self._watch(), name="watch-central")}
        connection.post(AskGroups(tuple(self._names)))
        for model, requests in self._unplaced.items():
            connection.post(Unplaced(model, requests))
        try:
            while (message := await connection.receive()) is not None:
                if isinstance(message, AskUnplaced):
                    aside = asyncio.create_task(self._answer_unplaced(connection, message))
                    asides.add(aside)
                    aside.add_done_callback(asides.discard)
                else:
                    self._take(message)
        finally:
            self._central = None
            for aside in asides:
                aside.cancel()
            self._bindings.cancel()
            self._questions.end()

    def _take(self, message: ToIngress) -> None:
        match message:
            case Groups():
                self._take_groups(message)
            case UnplacedAnswer() | Ordered() | CentralBooksAnswer() | Places():
                self._questions.settle(message)
            case Queued(ticket):
                self._bindings.queued(ticket)
            case Bound(ticket, group_id):
                self._bindings.bound(ticket, group_id)
            case Unbound(ticket, code, text, field):
                exists = code is RefusalCode.EXISTS
                refusal = name_in_use() if exists else RequestRefused(code, text, field)
                self._bindings.refused(ticket, refusal)


async def _answered(central: Connection[ToIngress], answer: asyncio.Future[Any]) -> bool:
    """Whether an answer comes before the link ends, or has to be ended because nothing comes."""
    # wait() keeps our own cancellation apart from that of the answer (the link was lost).
    await asyncio.wait([answer], timeout=BIND_SECONDS)
    if not answer.done():
        # Hang up, or every later request would wait as long, and what is posted would pile up.
        logger.warning("the central scheduler did not answer for %g s", BIND_SECONDS)
        central.abort()
    return answer.done() and not answer.cancelled()
