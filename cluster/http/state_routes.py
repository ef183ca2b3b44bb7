"""Routes that put a model to sleep, wake it, and give it other weights.

Named as vLLM and SGLang name them; `?model=NAME` is another model than the first.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from blockyard.cluster.dispatch import Dispatcher
from blockyard.cluster.http.exchange import json_response, read_body
from blockyard.cluster.http.json_fields import JsonFields
from blockyard.cluster.http.key_gate import caller_of
from blockyard.cluster.request.api_error import ApiError
from blockyard.cluster.request.generation import find_model
from blockyard.cluster.request.limits import invalid
from blockyard.cluster.states.state_api import StateApi
from blockyard.protos import cluster_pb2 as pb

__all__ = ["StateRoutes"]

_LEVELS = ("1", "2")
"""vLLM's: what becomes of the weights. Here they are read from their files again, at either."""


class StateRoutes:
    """Each method answers one route."""

    def __init__(self, dispatcher: Dispatcher, states: StateApi) -> None:
        self._dispatcher = dispatcher
        self._states = states

    async def sleep(self, request: Request) -> Response:
        """`POST /sleep`."""
        asked = _query(request, "model", "level")
        if asked.get("level", "1") not in _LEVELS:
            raise invalid("level", f"is {asked['level'][:40]!r}; known are {', '.join(_LEVELS)}")
        message = pb.SleepRequest(model=asked.get("model", ""))
        return _told(await self._states.sleep(message, caller_of(request)))

    async def wake_up(self, request: Request) -> Response:
        """`POST /wake_up`."""
        message = pb.WakeUpRequest(model=_query(request, "model").get("model", ""))
        return _told(await self._states.wake_up(message, caller_of(request)))

    async def is_sleeping(self, request: Request) -> Response:
        """`GET /is_sleeping`."""
        name = _query(request, "model").get("model", "")
        return _told(self._states.state(find_model(self._dispatcher, name, "model").name))

    async def update(self, request: Request) -> Response:
        """`POST /update_weights_from_disk`."""
        fields = JsonFields(await read_body(request))
        message = pb.UpdateWeightsRequest(
            model=fields.text("model") or "", directory=fields.text("model_path") or ""
        )
        fields.refuse_rest()
        try:
            told = await self._states.update_weights(message, caller_of(request))
        except ApiError as error:
            raise (error.at("model_path") if error.field == "directory" else error) from None
        return _told(told)


def _query(request: Request, *known: str) -> dict[str, str]:
    asked = dict(request.query_params)
    for name in asked.keys() - set(known):
        raise invalid(name[:40], f"is not known here; known are {', '.join(known)}")
    return asked


def _told(state: pb.ModelState) -> Response:
    body: dict[str, Any] = {
        "model": state.model,
        "is_sleeping": state.sleeping,
        "weight_version": state.weight_version,
        "groups": state.groups,
    }
    return json_response(body)
