"""Sleep, wake and other weights as callers ask for them, whatever the transport."""

from collections.abc import Callable, Collection
from typing import Any, Protocol

from blockyard.cluster.dispatch import Dispatcher
from blockyard.cluster.group_identity import GroupIdentity
from blockyard.cluster.request.admin import AdminDoor
from blockyard.cluster.request.api_error import RETRY_AFTER_SECONDS, ApiCode, ApiError, from_refusal
from blockyard.cluster.request.caller import Caller
from blockyard.cluster.request.generation import find_model
from blockyard.cluster.request.limits import check_known_fields, invalid
from blockyard.cluster.request.malformed_message import MalformedMessage
from blockyard.cluster.states.model_state import Ordered
from blockyard.protos import cluster_pb2 as pb
from blockyard.scheduler.request import RequestRefused

__all__ = ["Orders", "StateApi"]

_LONGEST_DIRECTORY = 4096


class Orders(Protocol):
    """Who has groups become something: the way to the central scheduler."""

    async def order(self, model: str, asleep: bool, directory: str | None = None) -> Ordered | None:
        """What became of it; None when the central scheduler is not there, or went away."""
        ...


class StateApi:
    """Of one server.

    Args:
        dispatcher: knows the models.
        orders: carries them out.
        groups: all that are up.
        door: who may give orders.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        orders: Orders,
        groups: Callable[[], Collection[GroupIdentity]],
        door: AdminDoor,
    ) -> None:
        self._dispatcher = dispatcher
        self._orders = orders
        self._groups = groups
        self._door = door

    async def sleep(self, request: Any, caller: Caller) -> pb.ModelState:
        """Answer `SleepRequest`. Raises `ApiError`."""
        return await self._order(request, caller, asleep=True)

    async def wake_up(self, request: Any, caller: Caller) -> pb.ModelState:
        """Answer `WakeUpRequest`. Raises `ApiError`."""
        return await self._order(request, caller, asleep=False)

    async def update_weights(self, request: Any, caller: Caller) -> pb.ModelState:
        """Answer `UpdateWeightsRequest`. Raises `ApiError`."""
        self._door.check(caller)
        directory = getattr(request, "directory", "")
        if not isinstance(request, MalformedMessage) and not directory:
            raise invalid("directory", "is empty; name one below the server's directory of weights")
        if len(directory) > _LONGEST_DIRECTORY:
            raise invalid("directory", f"has more than {_LONGEST_DIRECTORY} characters")
        return await self._order(request, caller, asleep=False, directory=directory)

    def state(self, model: str) -> pb.ModelState:
        """What the groups of a model are now; asleep if all of them are. Anybody may know."""
        states = [group.state for group in self._groups() if group.model.name == model]
        newest = max(states, key=lambda state: state.generation, default=None)
        return pb.ModelState(
            model=model,
            sleeping=bool(states) and all(state.asleep for state in states),
            weight_version=newest.version if newest is not None else "",
            groups=len(states),
        )

    async def _order(
        self, request: Any, caller: Caller, asleep: bool, directory: str | None = None
    ) -> pb.ModelState:
        self._door.check(caller)
        if isinstance(request, MalformedMessage):
            raise invalid("request", f"not a valid {request.expected} message")
        check_known_fields("request", request)
        model = find_model(self._dispatcher, request.model, "model").name
        told = await self._orders.order(model, asleep, directory)
        if told is None:
            raise ApiError(
                ApiCode.UNAVAILABLE,
                "",
                "whoever has this done is not there at the moment; see what the model is now, and "
                "try again",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        if told.code is not None:
            field = "" if directory is None else "directory"
            raise from_refusal(RequestRefused(told.code, told.message, field))
        return pb.ModelState(
            model=model,
            sleeping=told.state.asleep,
            weight_version=told.state.version,
            groups=told.groups,
        )
