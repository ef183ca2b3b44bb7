"""Registers services on a gRPC server, with parsers that leave malformed bytes to the methods.

The `add_*_to_server` functions have the signature of generated ones, so that Ray Serve can be
given their import paths in place of those. A servicer is any object with the methods' names.
"""

from collections.abc import Callable, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from blockyard.cluster.request.malformed_message import tolerant_parser
from blockyard.protos import chaos_pb2, cluster_pb2, generation_pb2

__all__ = [
    "add_chaos_to_server",
    "add_cluster_to_server",
    "add_generation_to_server",
    "add_health_to_server",
]


def add_generation_to_server(servicer: Any, server: Any) -> None:
    """Register `blockyard.v1.Generation`."""
    service = generation_pb2.DESCRIPTOR.services_by_name["Generation"]
    _add(
        service.full_name,
        {
            "Generate": _unary(servicer.Generate, generation_pb2.GenerateRequest),
            "GenerateStream": _stream(servicer.GenerateStream, generation_pb2.GenerateRequest),
            "ResumeStream": _stream(servicer.ResumeStream, generation_pb2.ResumeRequest),
            "Explain": _unary(servicer.Explain, generation_pb2.ExplainRequest),
            "Abort": _unary(servicer.Abort, generation_pb2.AbortRequest),
            "Tokenize": _unary(servicer.Tokenize, generation_pb2.TokenizeRequest),
            "Detokenize": _unary(servicer.Detokenize, generation_pb2.DetokenizeRequest),
        },
        server,
    )


def add_cluster_to_server(servicer: Any, server: Any) -> None:
    """Register `blockyard.v1.Cluster`."""
    service = cluster_pb2.DESCRIPTOR.services_by_name["Cluster"]
    _add(
        service.full_name,
        {
            "GetLedger": _unary(servicer.GetLedger, cluster_pb2.GetLedgerRequest),
            "WatchLedger": _stream(servicer.WatchLedger, cluster_pb2.WatchLedgerRequest),
            "GetArrivals": _unary(servicer.GetArrivals, cluster_pb2.GetArrivalsRequest),
            "GetModel": _unary(servicer.GetModel, cluster_pb2.GetModelRequest),
            "Sleep": _unary(servicer.Sleep, cluster_pb2.SleepRequest),
            "WakeUp": _unary(servicer.WakeUp, cluster_pb2.WakeUpRequest),
            "UpdateWeights": _unary(servicer.UpdateWeights, cluster_pb2.UpdateWeightsRequest),
            "LoadAdapter": _unary(servicer.LoadAdapter, cluster_pb2.LoadAdapterRequest),
            "UnloadAdapter": _unary(servicer.UnloadAdapter, cluster_pb2.UnloadAdapterRequest),
        },
        server,
    )


def add_chaos_to_server(servicer: Any, server: Any) -> None:
    """Register `blockyard.v1.Chaos`."""
    service = chaos_pb2.DESCRIPTOR.services_by_name["Chaos"]
    handlers = {"Disturb": _unary(servicer.Disturb, chaos_pb2.DisturbRequest)}
    _add(service.full_name, handlers, server)


def add_health_to_server(servicer: Any, server: Any) -> None:
    """Register `grpc.health.v1.Health`."""
    service = health_pb2.DESCRIPTOR.services_by_name["Health"]
    _add(
        service.full_name,
        {
            "Check": _unary(servicer.Check, health_pb2.HealthCheckRequest),
            "List": _unary(servicer.List, health_pb2.HealthListRequest),
            "Watch": _stream(servicer.Watch, health_pb2.HealthCheckRequest),
        },
        server,
    )


def _add(name: str, handlers: Mapping[str, Any], server: Any) -> None:
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))


def _unary(method: Callable[..., Any], request_type: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        method,
        request_deserializer=tolerant_parser(request_type),
        response_serializer=_serialize,
    )


def _stream(method: Callable[..., Any], request_type: Any) -> Any:
    return grpc.unary_stream_rpc_method_handler(
        method,
        request_deserializer=tolerant_parser(request_type),
        response_serializer=_serialize,
    )


def _serialize(message: Any) -> bytes:
    return bytes(message.SerializeToString())
