"""Talks to a Blockyard server over gRPC: an asynchronous client, and one for scripts and the CLI.

Both give the protocol's own messages. Failures are `ServerError`, with the field and the server's
words. Units: seconds, tokens.
"""

import os
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Self

import grpc

from blockyard.cluster.client_error import ServerError, server_error
from blockyard.protos import cluster_pb2, generation_pb2
from blockyard.protos.generation_pb2 import GenerateRequest

__all__ = [
    "ADDRESS_VARIABLE",
    "DEFAULT_ADDRESS",
    "BlockingClient",
    "GenerationClient",
    "ServerError",
    "Settings",
    "build_request",
    "server_address",
]

ADDRESS_VARIABLE = "BLOCKYARD_ADDRESS"
DEFAULT_ADDRESS = "127.0.0.1:50051"

_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_GENERATE_STREAM = "/blockyard.v1.Generation/GenerateStream"
_GET_LEDGER = "/blockyard.v1.Cluster/GetLedger"
_GET_ARRIVALS = "/blockyard.v1.Cluster/GetArrivals"
_WATCH_LEDGER = "/blockyard.v1.Cluster/WatchLedger"


@dataclass(frozen=True, slots=True)
class Settings:
    """Sampling parameters as a caller gives them; None leaves one to the server's default."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    n: int | None = None
    stop: Sequence[str] = field(default_factory=tuple)


def build_request(
    *,
    prompt: str | None = None,
    token_ids: Sequence[int] | None = None,
    messages: Sequence[Mapping[str, str]] | None = None,
    model: str = "",
    request_id: str = "",
    settings: Settings | None = None,
) -> GenerateRequest:
    """A request from plain values. Give exactly one of prompt, token_ids and messages.

    Raises:
        ValueError: not exactly one of them, or a value that the message cannot hold.
    """
    if sum(value is not None for value in (prompt, token_ids, messages)) != 1:
        raise ValueError("give exactly one of prompt, token_ids and messages")
    request = GenerateRequest(model=model, request_id=request_id)
    if prompt is not None:
        request.prompt = prompt
    elif token_ids is not None:
        request.tokens.SetInParent()
        request.tokens.ids.extend(token_ids)
    elif messages is not None:
        request.chat.SetInParent()
        for message in messages:
            request.chat.messages.add(role=message["role"], content=message["content"])
    if settings is not None:
        request.sampling.stop.extend(settings.stop)
        for name in Settings.__slots__:
            value = getattr(settings, name)
            if name != "stop" and value is not None:
                setattr(request.sampling, name, value)
    return request


def server_address(address: str | None = None) -> str:
    """The address given, else that of the environment, else this machine's default."""
    return address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS


class GenerationClient:
    """Asynchronous; use as `async with GenerationClient() as client`."""

    def __init__(self, address: str | None = None, timeout_seconds: float | None = None) -> None:
        """`timeout_seconds` bounds each call as a whole."""
        self._timeout_seconds = timeout_seconds
        self._channel = grpc.aio.insecure_channel(
            server_address(address), options=_channel_options()
        )

    async def __aenter__(self) -> Self:
        """Nothing is connected before the first call."""
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Close the connection; calls under way are cancelled."""
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls under way are cancelled."""
        await self._channel.close()

    async def generate(self, request: GenerateRequest) -> generation_pb2.GenerateResponse:
        """The whole answer. Raises `ServerError`."""
        response: generation_pb2.GenerateResponse = await self._unary(
            "/blockyard.v1.Generation/Generate", request, generation_pb2.GenerateResponse
        )
        return response

    async def stream(
        self, request: GenerateRequest
    ) -> AsyncGenerator[generation_pb2.GenerateChunk, None]:
        """The answer in pieces; closing the generator cancels the request. Raises `ServerError`."""
        call = _open_stream(self._channel, _GENERATE_STREAM, request, generation_pb2.GenerateChunk)(
            request, timeout=self._timeout_seconds
        )
        async with aclosing(_read_stream(call)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def ledger(self, audit: bool = False) -> cluster_pb2.LedgerResponse:
        """The books of every group, proved with `audit`. Raises `ServerError`."""
        response: cluster_pb2.LedgerResponse = await self._unary(
            _GET_LEDGER, cluster_pb2.GetLedgerRequest(audit=audit), cluster_pb2.LedgerResponse
        )
        return response

    async def watch_ledger(
        self, interval_seconds: float | None = None, heartbeat_seconds: float | None = None
    ) -> AsyncGenerator[cluster_pb2.LedgerResponse, None]:
        """The books now and as they change, without a time limit. Raises `ServerError`."""
        request = _watch_request(interval_seconds, heartbeat_seconds)
        call = _open_stream(self._channel, _WATCH_LEDGER, request, cluster_pb2.LedgerResponse)
        async with aclosing(_read_stream(call(request))) as books:
            async for response in books:
                yield response

    async def model(self, name: str = "") -> cluster_pb2.ModelResponse:
        """Facts of a model; of the default one without a name. Raises `ServerError`."""
        response: cluster_pb2.ModelResponse = await self._unary(
            "/blockyard.v1.Cluster/GetModel",
            cluster_pb2.GetModelRequest(name=name),
            cluster_pb2.ModelResponse,
        )
        return response

    async def _unary(self, method: str, request: Any, response_type: Any) -> Any:
        call = self._channel.unary_unary(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_type.FromString,
        )
        try:
            return await call(request, timeout=self._timeout_seconds)
        except grpc.RpcError as error:
            raise server_error(error) from None


class BlockingClient:
    """The same calls for code that has no event loop; use as `with BlockingClient() as client`."""

    def __init__(self, address: str | None = None, timeout_seconds: float | None = None) -> None:
        """`timeout_seconds` bounds each call as a whole."""
        self._timeout_seconds = timeout_seconds
        self._channel = grpc.insecure_channel(server_address(address), options=_channel_options())

    def __enter__(self) -> Self:
        """Nothing is connected before the first call."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the connection; calls under way are cancelled."""
        self._channel.close()

    def stream(
        self, request: GenerateRequest
    ) -> Generator[generation_pb2.GenerateChunk, None, None]:
        """The answer in pieces; closing the generator cancels the request. Raises `ServerError`."""
        call = _open_stream(self._channel, _GENERATE_STREAM, request, generation_pb2.GenerateChunk)(
            request, timeout=self._timeout_seconds
        )
        yield from _read_blocking_stream(call)

    def ledger(self, audit: bool = False) -> cluster_pb2.LedgerResponse:
        """The books of every group, proved with `audit`. Raises `ServerError`."""
        call = self._channel.unary_unary(
            _GET_LEDGER,
            request_serializer=cluster_pb2.GetLedgerRequest.SerializeToString,
            response_deserializer=cluster_pb2.LedgerResponse.FromString,
        )
        try:
            response: cluster_pb2.LedgerResponse = call(
                cluster_pb2.GetLedgerRequest(audit=audit), timeout=self._timeout_seconds
            )
        except grpc.RpcError as error:
            raise server_error(error) from None
        return response

    def arrivals(self, after: Mapping[str, int], salt: bytes) -> cluster_pb2.ArrivalsResponse:
        """What the cluster was asked for since `next` of the last answer. Raises `ServerError`."""
        call = self._channel.unary_unary(
            _GET_ARRIVALS,
            request_serializer=cluster_pb2.GetArrivalsRequest.SerializeToString,
            response_deserializer=cluster_pb2.ArrivalsResponse.FromString,
        )
        request = cluster_pb2.GetArrivalsRequest(after=after, salt=salt)
        try:
            response: cluster_pb2.ArrivalsResponse = call(request, timeout=self._timeout_seconds)
        except grpc.RpcError as error:
            raise server_error(error) from None
        return response

    def watch_ledger(
        self, interval_seconds: float | None = None, heartbeat_seconds: float | None = None
    ) -> Generator[cluster_pb2.LedgerResponse, None, None]:
        """The books now and as they change, without a time limit. Raises `ServerError`."""
        request = _watch_request(interval_seconds, heartbeat_seconds)
        call = _open_stream(self._channel, _WATCH_LEDGER, request, cluster_pb2.LedgerResponse)
        yield from _read_blocking_stream(call(request))


def _watch_request(
    interval_seconds: float | None, heartbeat_seconds: float | None
) -> cluster_pb2.WatchLedgerRequest:
    return cluster_pb2.WatchLedgerRequest(
        interval_seconds=interval_seconds, heartbeat_seconds=heartbeat_seconds
    )


def _open_stream(channel: Any, method: str, request: Any, response_type: Any) -> Any:
    return channel.unary_stream(
        method,
        request_serializer=type(request).SerializeToString,
        response_deserializer=response_type.FromString,
    )


async def _read_stream(call: Any) -> AsyncGenerator[Any, None]:
    """What comes, until it ends; closing it cancels the call."""
    try:
        async for message in call:
            yield message
    except grpc.RpcError as error:
        raise server_error(error) from None
    finally:
        call.cancel()


def _read_blocking_stream(call: Any) -> Generator[Any, None, None]:
    try:
        yield from call
    except grpc.RpcError as error:
        raise server_error(error) from None
    finally:
        call.cancel()


def _channel_options() -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.enable_http_proxy", 0),
    ]
