"""Requests that are being served, for their own clients: why they wait, and their end if so asked.

Whoever asks sees the requests of its own tenant. Knows no transport.
"""

from blockyard.cluster.dispatch import Dispatcher, RequestDirectory
from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.caller import ANYBODY, Caller
from blockyard.cluster.request.limits import check_known_fields, check_name, invalid
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.explain import Explanation

__all__ = ["RequestService"]


class RequestService:
    """Serves `Explain` and `Abort`."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def explain(
        self, request: pb.ExplainRequest, caller: Caller = ANYBODY
    ) -> pb.ExplainResponse:
        """Why a request waits. Raises `ApiError`."""
        check_known_fields("request", request)
        directory = self._directory(request.request_id)
        found = await directory.requests(caller.tenant, request.request_id)
        if not found:
            raise ApiError(
                ApiCode.NOT_FOUND,
                "request_id",
                f"no request {request.request_id!r} of yours is being served (any more)",
            )
        explained = sorted(
            (each for served in found for each in served.explanations),
            key=lambda each: each.choice,
        )
        return pb.ExplainResponse(
            request_id=request.request_id, choices=[_state(each) for each in explained]
        )

    async def abort(self, request: pb.AbortRequest, caller: Caller = ANYBODY) -> pb.AbortResponse:
        """End a request. Raises `ApiError`."""
        check_known_fields("request", request)
        directory = self._directory(request.request_id)
        found = await directory.requests(caller.tenant, request.request_id, call_off=True)
        return pb.AbortResponse(aborted=bool(found))

    def _directory(self, request_id: str) -> RequestDirectory:
        if not request_id:
            raise invalid("request_id", "is missing; give the name that answers tell")
        check_name("request_id", request_id)
        if not isinstance(self._dispatcher, RequestDirectory):
            raise ApiError(ApiCode.UNAVAILABLE, "", "no engine here finds requests by their names")
        return self._dispatcher


def _state(explained: Explanation) -> pb.ChoiceState:
    return pb.ChoiceState(
        choice=explained.choice,
        state=str(explained.state.value),
        waits_for=explained.reason.value,
        place=explained.place,
        blocks_short=explained.blocks_short,
        holders=[
            pb.BlockHolder(request_id=holder.request_id, blocks=holder.num_blocks)
            for holder in explained.holders
        ],
        estimate_seconds=explained.estimate_seconds,
        behind=explained.behind,
    )
