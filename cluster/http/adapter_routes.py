"""Routes that load and unload adapters, named as vLLM names them."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from blockyard.cluster.adapters.adapter_api import AdapterApi
from blockyard.cluster.http.exchange import json_response, read_body
from blockyard.cluster.http.json_fields import JsonFields
from blockyard.cluster.http.key_gate import caller_of
from blockyard.cluster.request.api_error import ApiError
from blockyard.protos import cluster_pb2 as pb

__all__ = ["AdapterRoutes"]

_FIELDS = {"name": "lora_name", "path": "lora_path"}


class AdapterRoutes:
    """Each method answers one route."""

    def __init__(self, adapters: AdapterApi) -> None:
        self._adapters = adapters

    async def load(self, request: Request) -> Response:
        """`POST /v1/load_lora_adapter`."""
        fields = JsonFields(await read_body(request))
        message = pb.LoadAdapterRequest(
            model=fields.text("model") or "",
            name=fields.text("lora_name") or "",
            path=fields.text("lora_path") or "",
        )
        fields.refuse_rest()
        try:
            return _told(await self._adapters.load(message, caller_of(request)))
        except ApiError as error:
            raise _in_json(error) from None

    async def unload(self, request: Request) -> Response:
        """`POST /v1/unload_lora_adapter`."""
        fields = JsonFields(await read_body(request))
        message = pb.UnloadAdapterRequest(
            model=fields.text("model") or "", name=fields.text("lora_name") or ""
        )
        fields.refuse_rest()
        try:
            return _told(await self._adapters.unload(message, caller_of(request)))
        except ApiError as error:
            raise _in_json(error) from None


def _in_json(error: ApiError) -> ApiError:
    field = _FIELDS.get(error.field)
    return error if field is None else error.at(field)


def _told(adapter: pb.Adapter) -> Response:
    body: dict[str, Any] = {
        "lora_name": adapter.name,
        "version": adapter.version,
        "rank": adapter.rank,
    }
    return json_response(body)
