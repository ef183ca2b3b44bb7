"""What each model is to be, and that all of its groups become it: the central scheduler's end.

Groups that come later are told too, and a central scheduler that was started anew learns from the
engines: the newest of what they are is what is wanted. Knows no wires. Units: seconds.
"""

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Protocol

from msgspec.structs import replace

from blockyard.cluster.group_identity import GroupIdentity
from blockyard.cluster.states.model_state import STARTED, Became, Become, ModelState, Order, Ordered
from blockyard.scheduler.request import RefusalCode

__all__ = ["ORDER_SECONDS", "ModelStates", "StatedGroup"]

logger = logging.getLogger(__name__)

ORDER_SECONDS = 3600.0
"""A group that has not loaded its weights by then never will."""

_SILENT = "a group did not answer in time; see what the server is now, and try again"


class StatedGroup(Protocol):
    """A group as the central scheduler has it on its books."""

    identity: GroupIdentity
    """With what the group is, as far as it has told."""

    @property
    def post(self) -> Callable[[object], None]:
        """Tell its engine."""
        ...


class ModelStates:
    """Of all models.

    Args:
        tell: called when a group is something else than before.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._wanted: dict[str, ModelState] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tickets = count(1)
        # By ticket: the group that was asked, and its answer; None when it has left.
        self._asked: dict[int, tuple[StatedGroup, asyncio.Future[Became | None]]] = {}

    def wanted(self, model: str) -> ModelState | None:
        """What a model is to be, if that is known."""
        return self._wanted.get(model)

    def joined(self, groups: Iterable[StatedGroup]) -> None:
        """A group has come; these are all of its model. Who is behind the times hears of it."""
        groups = list(groups)
        newest = max((g.identity.state for g in groups), key=lambda state: state.generation)
        model = groups[0].identity.model.name
        wanted = self._wanted.setdefault(model, newest)
        if wanted.generation < newest.generation:
            wanted = self._wanted[model] = newest
        for group in groups:
            if group.identity.state.generation < wanted.generation:
                self._post(group, Become(0, wanted))

    def left(self, group: StatedGroup) -> None:
        """A group has gone; nobody waits for it."""
        for asked, answer in self._asked.values():
            if asked is group and not answer.done():
                answer.set_result(None)

    def became(self, group: StatedGroup, told: Became) -> None:
        """A group has told what it is."""
        group.identity = replace(group.identity, state=told.state, resting=told.state.asleep)
        self._tell()
        _, answer = self._asked.get(told.ticket, (None, None))
        if answer is not None and not answer.done():
            answer.set_result(told)

    async def carry_out(
        self, order: Order, groups_of: Callable[[str], Sequence[StatedGroup]]
    ) -> Ordered:
        """Have all groups of a model become what is ordered; when one cannot, none does.

        Args:
            order: one after the other for each model.
            groups_of: all groups of a model that are there.
        """
        async with self._locks[order.model]:
            groups = groups_of(order.model)
            if not groups:
                return Ordered(
                    order.ticket,
                    self._wanted.get(order.model, STARTED),
                    0,
                    RefusalCode.UNAVAILABLE,
                    f"no group serves {order.model} at the moment; try again shortly",
                )
            before = self._wanted.get(order.model, groups[0].identity.state)
            state = _state_after(before, order)
            senseless = _refused_at_once(before, order) or self._taken_elsewhere(order)
            if senseless is not None:
                return Ordered(order.ticket, before, len(groups), *senseless)
            if order.load in before.adapters:
                return Ordered(order.ticket, before, len(groups))
            refusal = None
            if order.directory is not None:
                refusal = await self._ask(groups, state, rehearse=True)
            if refusal is None:
                self._wanted[order.model] = state
                refusal = await self._ask(groups, state)
                if refusal is None:
                    return Ordered(order.ticket, state, len(groups))
                logger.warning("%s goes back to what it was: %s", order.model, refusal.message)
                before = replace(before, generation=state.generation + 1)
                self._wanted[order.model] = before
                await self._ask(groups_of(order.model), before)
            return Ordered(order.ticket, before, len(groups), refusal.code, refusal.message)

    def _taken_elsewhere(self, order: Order) -> tuple[RefusalCode, str] | None:
        """Requests name an adapter in place of a model, so no two models may have one of a name."""
        if order.load is None:
            return None
        name = order.load.name
        for model, state in self._wanted.items():
            if model != order.model and any(each.name == name for each in state.adapters):
                return RefusalCode.EXISTS, f"an adapter of {model} is loaded as {name!r}"
        return None

    async def _ask(
        self, groups: Sequence[StatedGroup], state: ModelState, rehearse: bool = False
    ) -> Became | None:
        """Ask all of them at once; the first that refuses. Who leaves meanwhile is passed over."""
        loop = asyncio.get_running_loop()
        tickets = [next(self._tickets) for _ in groups]
        for ticket, group in zip(tickets, groups, strict=True):
            self._asked[ticket] = group, loop.create_future()
            self._post(group, Become(ticket, state, rehearse))
        self._tell()
        answers = [self._asked[ticket][1] for ticket in tickets]
        try:
            async with asyncio.timeout(ORDER_SECONDS):
                told = await asyncio.gather(*answers)
        except TimeoutError:
            return Became(0, state, RefusalCode.UNAVAILABLE, _SILENT)
        finally:
            for ticket in tickets:
                del self._asked[ticket]
        refusals = (one for one in told if one is not None and one.code is not None)
        return next(refusals, None)

    def _post(self, group: StatedGroup, message: Become) -> None:
        now = group.identity.state
        # Adapters come and go beside the steps that run.
        meant = replace(message.state, generation=now.generation, adapters=now.adapters)
        if not message.rehearse and meant != now:
            group.identity = replace(group.identity, resting=True)
        group.post(message)


def _refused_at_once(before: ModelState, order: Order) -> tuple[RefusalCode, str] | None:
    """Why an order for an adapter makes no sense, if so."""
    if order.load is None:
        return None
    if before.asleep:
        return RefusalCode.UNAVAILABLE, "the model sleeps; wake it first"
    name = order.load.name
    if any(each.name == name and each != order.load for each in before.adapters):
        return RefusalCode.EXISTS, f"another adapter is loaded as {name!r}; unload it first"
    return None


def _state_after(before: ModelState, order: Order) -> ModelState:
    state = replace(before, generation=before.generation + 1)
    if order.load is not None:
        return replace(state, adapters=(*before.adapters, order.load))
    if order.unload:
        kept = tuple(each for each in before.adapters if each.name != order.unload)
        return replace(state, adapters=kept)
    state = replace(state, asleep=order.asleep)
    if order.directory is None:
        return state
    # Not a number alone: whoever counts anew must not give out a name that was given out before.
    version = f"{state.generation}-{secrets.token_hex(4)}"
    return replace(state, directory=order.directory, version=version)
