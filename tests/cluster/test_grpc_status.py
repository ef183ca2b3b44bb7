import pickle
from typing import Any

import grpc
import pytest

from blockyard.cluster.grpc_handlers import (
    add_cluster_to_server,
    add_generation_to_server,
    add_health_to_server,
)
from blockyard.cluster.grpc_status import call_status, set_status
from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.malformed_message import MalformedMessage, tolerant_parser
from blockyard.protos import cluster_pb2, generation_pb2


class RecordingContext:
    """What Ray Serve's context offers."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def set_code(self, code: Any) -> None:
        self.told["code"] = code

    def set_details(self, details: str) -> None:
        self.told["details"] = details

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        self.told["metadata"] = trailing_metadata


@pytest.mark.parametrize("code", list(ApiCode))
def test_every_code_is_one_of_grpcs(code: ApiCode) -> None:
    assert call_status(ApiError(code, "", "so")).code is grpc.StatusCode[code.value]


def test_a_context_without_abort_is_told_the_same() -> None:
    error = ApiError(ApiCode.INVALID_ARGUMENT, "prompt", "is empty")
    context = RecordingContext()
    set_status(context, error)
    status = call_status(error)
    assert context.told == {
        "code": grpc.StatusCode.INVALID_ARGUMENT,
        "details": "prompt: is empty",
        "metadata": list(status.trailing_metadata),
    }


def test_malformed_bytes_become_a_value_that_crosses_processes() -> None:
    parse = tolerant_parser(generation_pb2.GenerateRequest)
    request = generation_pb2.GenerateRequest(prompt="a")
    assert parse(request.SerializeToString()) == request
    malformed = pickle.loads(pickle.dumps(parse(b"\xff")))
    assert malformed == MalformedMessage("blockyard.v1.GenerateRequest")


class RecordingServer:
    def __init__(self) -> None:
        self.handlers: list[Any] = []

    def add_generic_rpc_handlers(self, handlers: tuple[Any, ...]) -> None:
        self.handlers.extend(handlers)


class AnyServicer:
    def __getattr__(self, name: str) -> Any:
        return name


@pytest.mark.parametrize(
    ("add", "service"),
    [
        (
            add_generation_to_server,
            generation_pb2.DESCRIPTOR.services_by_name["Generation"],
        ),
        (add_cluster_to_server, cluster_pb2.DESCRIPTOR.services_by_name["Cluster"]),
    ],
)
def test_every_method_of_the_protos_is_registered(add: Any, service: Any) -> None:
    server = RecordingServer()
    add(AnyServicer(), server)
    (handler,) = server.handlers
    assert handler.service_name() == service.full_name
    for method in service.methods:
        call = handler.service(_Call(f"/{service.full_name}/{method.name}"))
        assert call.response_streaming is method.server_streaming


def test_health_is_registered() -> None:
    server = RecordingServer()
    add_health_to_server(AnyServicer(), server)
    for name in ("Check", "Watch", "List"):
        assert server.handlers[0].service(_Call(f"/grpc.health.v1.Health/{name}")) is not None


class _Call:
    def __init__(self, method: str) -> None:
        self.method = method
