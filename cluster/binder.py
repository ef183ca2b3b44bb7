"""An ingress's standing link to the central scheduler: asks which group to use, holds names.

While the central scheduler is down or silent it answers nothing, and whoever asks decides alone.
Names that clients give their requests are held there for as long as a request lives, so that no
ingress takes the same one twice; those of this ingress it knows itself. Knows no engines. Units:
seconds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

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
from blockyard.cluster.served_request import AskUnplaced, ServedRequest, UnplacedAnswer
from blockyard.cluster.standing_link import stay_linked
from blockyard.cluster.states.model_state import Order, Ordered
from blockyard.cluster.waiting_room import Unplaced
from blockyard.cluster.wire import Codec, Connection, Endpoint
from blockyard.scheduler.request import RefusalCode, RequestRefused
from blockyard.workers.adapter_description import AdapterDescription

__all__ = ["BIND_SECONDS", "CentralBinder", "name_in_use", "no_group"]

logger = logging.getLogger(__name__)

BIND_SECONDS = 2.0
"""The central scheduler binds in well under a millisecond; silent for so long, it is stuck."""


def name_in_use() -> RequestRefused:
    """What a client is told whose name for a request is that of a live one."""
    return RequestRefused(
        RefusalCode.EXISTS,
        "a request of yours with this id is being served; choose another id or wait until it ends",
        "request_id",
    )


def no_group(model: str) -> RequestRefused:
    """What a client is told whose model has no group."""
    return RequestRefused(
        RefusalCode.UNAVAILABLE, f"no group serves {model} at the moment; try again shortly"
    )


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
        find_unplaced: Callable[[AskUnplaced], tuple[ServedRequest, ...]] = lambda asked: (),
    ) -> None:
        self._locate = locate
        self._take_groups = take_groups
        self._find_unplaced = find_unplaced
        self._central: Connection[ToIngress] | None = None
        self._bindings: dict[int, asyncio.Future[str]] = {}
        self._found: dict[int, asyncio.Future[tuple[ServedRequest, ...]]] = {}
        self._books: dict[int, asyncio.Future[CentralBooks]] = {}
        self._orders: dict[int, asyncio.Future[Ordered]] = {}
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

    async def bind(
        self,
        model: str,
        prompt_tokens: int,
        block_keys: tuple[bytes, ...] = (),
        block_size: int = 0,
        name: str = "",
        traceparent: str = "",
        request_id: str = "",
        priority: int = 0,
        places: int = 1,
    ) -> str | None:
        """The group to use; None when the central scheduler does not say.

        Args:
            model: its name.
            prompt_tokens: tokens to compute before the first new one.
            block_keys: of the prompt's full blocks of `block_size`.
            name: held from now on, unless it is refused; empty for none.
            traceparent: of the request, for who traces.
            request_id, priority: of the request: less urgent ones may have to give way to it.
            places: that it needs at once.

        Raises:
            RequestRefused: too much load, or the name is held elsewhere.
        """
        central = self._central
        if central is None:
            return None
        ticket = next(self._tickets)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._bindings[ticket] = answer
        hints = (block_keys, block_size, name, traceparent)
        central.post(Bind(ticket, model, prompt_tokens, *hints, request_id, priority, places))
        try:
            if not await _answered(central, answer):
                return None
        finally:
            del self._bindings[ticket]
        refusal = answer.exception()
        if isinstance(refusal, RequestRefused) and refusal.code is RefusalCode.UNAVAILABLE:
            return None
        return answer.result()

    async def unplaced(self, tenant: str, name: str, call_off: bool) -> tuple[ServedRequest, ...]:
        """What other ingresses have of a tenant's requests with a name that no group has."""
        central = self._central
        if central is None:
            return ()
        ticket = next(self._tickets)
        answer: asyncio.Future[tuple[ServedRequest, ...]]
        answer = self._found[ticket] = asyncio.get_running_loop().create_future()
        central.post(AskUnplaced(ticket, tenant, name, call_off))
        try:
            # An ingress that does not answer says nothing against the central scheduler.
            await asyncio.wait([answer], timeout=BIND_SECONDS)
            return answer.result() if answer.done() and not answer.cancelled() else ()
        finally:
            del self._found[ticket]

    async def books(self) -> CentralBooks | None:
        """The central scheduler's books; None when it does not say."""
        central = self._central
        if central is None:
            return None
        ticket = next(self._tickets)
        answer: asyncio.Future[CentralBooks] = asyncio.get_running_loop().create_future()
        self._books[ticket] = answer
        central.post(AskCentralBooks(ticket))
        try:
            return answer.result() if await _answered(central, answer) else None
        finally:
            del self._books[ticket]

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
        answer: asyncio.Future[Ordered] = asyncio.get_running_loop().create_future()
        self._orders[ticket] = answer
        central.post(Order(ticket, model, asleep, directory, load, unload))
        try:
            await asyncio.wait([answer])
            return None if answer.cancelled() else answer.result()
        finally:
            del self._orders[ticket]

    async def _use(self, connection: Connection[ToIngress]) -> None:
        self._central = connection
        connection.post(AskGroups(tuple(self._names)))
        for model, requests in self._unplaced.items():
            connection.post(Unplaced(model, requests))
        try:
            while (message := await connection.receive()) is not None:
                if isinstance(message, AskUnplaced):
                    connection.post(UnplacedAnswer(message.ticket, self._find_unplaced(message)))
                else:
                    self._take(message)
        finally:
            self._central = None
            asked = (self._bindings, self._books, self._found, self._orders)
            for answer in (answer for answers in asked for answer in answers.values()):
                answer.cancel()

    def _take(self, message: ToIngress) -> None:
        match message:
            case Groups():
                self._take_groups(message)
            case UnplacedAnswer(ticket, requests):
                found = self._found.get(ticket)
                if found is not None and not found.done():
                    found.set_result(requests)
            case Ordered(ticket):
                ordered = self._orders.get(ticket)
                if ordered is not None and not ordered.done():
                    ordered.set_result(message)
            case CentralBooksAnswer(ticket, books):
                asked = self._books.get(ticket)
                if asked is not None and not asked.done():
                    asked.set_result(books)
            case Bound(ticket, group_id):
                answer = self._bindings.get(ticket)
                if answer is not None and not answer.done():
                    answer.set_result(group_id)
            case Unbound(ticket, code, text):
                answer = self._bindings.get(ticket)
                if answer is not None and not answer.done():
                    exists = code is RefusalCode.EXISTS
                    answer.set_exception(name_in_use() if exists else RequestRefused(code, text))


async def _answered(central: Connection[ToIngress], answer: asyncio.Future[Any]) -> bool:
    """Whether an answer comes before the link ends, or has to be ended because nothing comes."""
    # wait() keeps our own cancellation apart from that of the answer (the link was lost).
    await asyncio.wait([answer], timeout=BIND_SECONDS)
    if not answer.done():
        # Hang up, or every later request would wait as long, and what is posted would pile up.
        logger.warning("the central scheduler did not answer for %g s", BIND_SECONDS)
        central.abort()
    return answer.done() and not answer.cancelled()
