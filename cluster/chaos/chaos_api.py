"""`blockyard.v1.Chaos`: what the service answers, free of any gRPC server. Units: seconds."""

from collections.abc import Awaitable, Callable
from typing import Any

from blockyard.cluster.chaos.faults import DEFAULT_SECONDS, MAX_SECONDS, Fault
from blockyard.cluster.group_links import GroupLinks
from blockyard.cluster.request.api_error import ApiCode, ApiError, from_refusal
from blockyard.cluster.request.malformed_message import MalformedMessage
from blockyard.protos import chaos_pb2
from blockyard.scheduler.request import RequestRefused

__all__ = ["ChaosApi"]


class ChaosApi:
    """Made only where faults are allowed."""

    def __init__(self, groups: GroupLinks, kill_central: Callable[[], Awaitable[None]]) -> None:
        self._groups = groups
        self._kill_central = kill_central

    async def disturb(self, request: Any) -> chaos_pb2.DisturbResponse:
        """Make something go wrong.

        Raises:
            ApiError: the fault, the group or the rank is not known.
        """
        if isinstance(request, MalformedMessage):
            raise _invalid("request", f"not a valid {request.expected} message")
        try:
            fault = Fault(request.fault)
        except ValueError:
            message = f"is {request.fault!r}; known are {', '.join(Fault)}"
            raise _invalid("fault", message) from None
        seconds = request.seconds or DEFAULT_SECONDS
        if not 0 < seconds <= MAX_SECONDS:
            raise _invalid("seconds", f"is {seconds}; at most {MAX_SECONDS:g} are possible")
        if fault is Fault.KILL_CENTRAL:
            await self._kill_central()
            return chaos_pb2.DisturbResponse(done="the central scheduler was killed")
        known = self._groups.groups
        group_id = request.group_id or min(known, default="")
        if group_id not in known:
            there = ", ".join(sorted(known)) or "none"
            raise _invalid("group_id", f"there is no group {group_id!r}; there are {there}")
        try:
            link = await self._groups.link(group_id)
            done = await link.disturb(fault, request.rank, seconds)
        except LookupError as error:
            raise _invalid("rank", str(error.args[0])) from None
        except RequestRefused as refusal:
            raise from_refusal(refusal) from None
        return chaos_pb2.DisturbResponse(done=done, group_id=group_id)


def _invalid(field: str, message: str) -> ApiError:
    return ApiError(ApiCode.INVALID_ARGUMENT, field, message)
