"""Talks to a Blockyard server over gRPC: an asynchronous client, and one for scripts and the CLI.

Both give the protocol's own messages. Failures are `ServerError`, with the field and the server's
words. Units: seconds, tokens.
"""

import os
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing
from typing import Any, Self

import grpc

from blockyard.cluster.client_error import ServerError, server_error
from blockyard.cluster.client_request import Settings, build_request
from blockyard.cluster.client_streams import (
    open_chunks,
    open_stream,
    open_unary,
    read_blocking_stream,
    read_stream,
    resuming,
    resuming_blocking,
)
from blockyard.cluster.tls import environment_credentials
from blockyard.protos import cluster_pb2, generation_pb2
from blockyard.protos.generation_pb2 import GenerateRequest

__all__ = [
    "ADDRESS_VARIABLE",
    "API_KEY_VARIABLE",
    "DEFAULT_ADDRESS",
    "BlockingClient",
    "GenerationClient",
    "ServerError",
    "Settings",
    "build_request",
    "server_address",
]

ADDRESS_VARIABLE = "BLOCKYARD_ADDRESS"
API_KEY_VARIABLE = "BLOCKYARD_API_KEY"
DEFAULT_ADDRESS = "127.0.0.1:50051"

_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_GENERATE = "/blockyard.v1.Generation/Generate"
_EXPLAIN = "/blockyard.v1.Generation/Explain"
_ABORT = "/blockyard.v1.Generation/Abort"
_GET_LEDGER = "/blockyard.v1.Cluster/GetLedger"
_GET_ARRIVALS = "/blockyard.v1.Cluster/GetArrivals"
_GET_MODEL = "/blockyard.v1.Cluster/GetModel"
_WATCH_LEDGER = "/blockyard.v1.Cluster/WatchLedger"


def server_address(address: str | None = None) -> str:
    """The address given, else that of the environment, else this machine's default."""
    return address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS


class GenerationClient:
    """Asynchronous; use as `async with GenerationClient() as client`."""

    def __init__(
        self,
        address: str | None = None,
        timeout_seconds: float | None = None,
        api_key: str | None = None,
        tls: Any = None,
    ) -> None:
        """`timeout_seconds` bounds each call as a whole; the key is else the environment's.

        `tls` are channel credentials, see `channel_credentials`; else the environment's.
        """
        self._timeout_seconds = timeout_seconds
        self._metadata = _key_metadata(api_key)
        self._channel = _connect(grpc.aio, address, tls)

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
        response: generation_pb2.GenerateResponse = await self.call(
            _GENERATE, request, generation_pb2.GenerateResponse
        )
        return response

    async def stream(
        self, request: GenerateRequest
    ) -> AsyncGenerator[generation_pb2.GenerateChunk, None]:
        """The answer in pieces; closing the generator cancels the request.

        With `resume_seconds` in the request a stream that is cut off is read on.

        Raises:
            ServerError: refused, failed, or cut off.
        """
        async with aclosing(resuming(self._open, request, self.abort)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def explain(self, request_id: str) -> generation_pb2.ExplainResponse:
        """Why a request of ours waits, while it is being served. Raises `ServerError`."""
        request = generation_pb2.ExplainRequest(request_id=request_id)
        told: generation_pb2.ExplainResponse = await self.call(
            _EXPLAIN, request, generation_pb2.ExplainResponse
        )
        return told

    async def abort(self, request_id: str) -> bool:
        """End a request of ours; False when none is being served. Raises `ServerError`."""
        request = generation_pb2.AbortRequest(request_id=request_id)
        return bool((await self.call(_ABORT, request, generation_pb2.AbortResponse)).aborted)

    async def ledger(self, audit: bool = False) -> cluster_pb2.LedgerResponse:
        """The books of every group, proved with `audit`. Raises `ServerError`."""
        response: cluster_pb2.LedgerResponse = await self.call(
            _GET_LEDGER, cluster_pb2.GetLedgerRequest(audit=audit), cluster_pb2.LedgerResponse
        )
        return response

    async def watch_ledger(
        self, interval_seconds: float | None = None, heartbeat_seconds: float | None = None
    ) -> AsyncGenerator[cluster_pb2.LedgerResponse, None]:
        """The books now and as they change, without a time limit. Raises `ServerError`."""
        request = _watch_request(interval_seconds, heartbeat_seconds)
        call = open_stream(self._channel, _WATCH_LEDGER, request, cluster_pb2.LedgerResponse)
        async with aclosing(read_stream(call(request, metadata=self._metadata))) as books:
            async for response in books:
                yield response

    async def arrivals(self, after: Mapping[str, int], salt: bytes) -> cluster_pb2.ArrivalsResponse:
        """What the cluster was asked for since `next` of the last answer. Raises `ServerError`."""
        request = cluster_pb2.GetArrivalsRequest(after=after, salt=salt)
        response: cluster_pb2.ArrivalsResponse = await self.call(
            _GET_ARRIVALS, request, cluster_pb2.ArrivalsResponse
        )
        return response

    async def model(self, name: str = "") -> cluster_pb2.ModelResponse:
        """Facts of a model; of the default one without a name. Raises `ServerError`."""
        response: cluster_pb2.ModelResponse = await self.call(
            _GET_MODEL, cluster_pb2.GetModelRequest(name=name), cluster_pb2.ModelResponse
        )
        return response

    async def call(self, method: str, request: Any, response_type: Any) -> Any:
        """A method with one answer, by its full name. Raises `ServerError`."""
        call = open_unary(self._channel, method, request, response_type)
        try:
            return await call(request, timeout=self._timeout_seconds, metadata=self._metadata)
        except grpc.RpcError as error:
            raise server_error(error) from None

    def _open(self, request: Any) -> Any:
        return open_chunks(self._channel, request, self._timeout_seconds, self._metadata)


class BlockingClient:
    """The same calls for code that has no event loop; use as `with BlockingClient() as client`."""

    def __init__(
        self,
        address: str | None = None,
        timeout_seconds: float | None = None,
        api_key: str | None = None,
        tls: Any = None,
    ) -> None:
        """See `GenerationClient`."""
        self._timeout_seconds = timeout_seconds
        self._metadata = _key_metadata(api_key)
        self._channel = _connect(grpc, address, tls)

    def __enter__(self) -> Self:
        """Nothing is connected before the first call."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the connection; calls under way are cancelled."""
        self._channel.close()

    def generate(self, request: GenerateRequest) -> generation_pb2.GenerateResponse:
        """The whole answer. Raises `ServerError`."""
        response: generation_pb2.GenerateResponse = self._call(
            _GENERATE, request, generation_pb2.GenerateResponse
        )
        return response

    def stream(
        self, request: GenerateRequest
    ) -> Generator[generation_pb2.GenerateChunk, None, None]:
        """The answer in pieces; closing the generator cancels the request.

        With `resume_seconds` in the request a stream that is cut off is read on.

        Raises:
            ServerError: refused, failed, or cut off.
        """
        yield from resuming_blocking(self._open, request, self.abort)

    def ledger(self, audit: bool = False) -> cluster_pb2.LedgerResponse:
        """The books of every group, proved with `audit`. Raises `ServerError`."""
        request = cluster_pb2.GetLedgerRequest(audit=audit)
        response: cluster_pb2.LedgerResponse = self._call(
            _GET_LEDGER, request, cluster_pb2.LedgerResponse
        )
        return response

    def abort(self, request_id: str) -> bool:
        """End a request of ours; False when none is being served. Raises `ServerError`."""
        request = generation_pb2.AbortRequest(request_id=request_id)
        return bool(self._call(_ABORT, request, generation_pb2.AbortResponse).aborted)

    def arrivals(self, after: Mapping[str, int], salt: bytes) -> cluster_pb2.ArrivalsResponse:
        """What the cluster was asked for since `next` of the last answer. Raises `ServerError`."""
        request = cluster_pb2.GetArrivalsRequest(after=after, salt=salt)
        response: cluster_pb2.ArrivalsResponse = self._call(
            _GET_ARRIVALS, request, cluster_pb2.ArrivalsResponse
        )
        return response

    def watch_ledger(
        self, interval_seconds: float | None = None, heartbeat_seconds: float | None = None
    ) -> Generator[cluster_pb2.LedgerResponse, None, None]:
        """The books now and as they change, without a time limit. Raises `ServerError`."""
        request = _watch_request(interval_seconds, heartbeat_seconds)
        call = open_stream(self._channel, _WATCH_LEDGER, request, cluster_pb2.LedgerResponse)
        yield from read_blocking_stream(call(request, metadata=self._metadata))

    def _open(self, request: Any) -> Any:
        return open_chunks(self._channel, request, self._timeout_seconds, self._metadata)

    def _call(self, method: str, request: Any, response_type: Any) -> Any:
        call = open_unary(self._channel, method, request, response_type)
        try:
            return call(request, timeout=self._timeout_seconds, metadata=self._metadata)
        except grpc.RpcError as error:
            raise server_error(error) from None


def _connect(library: Any, address: str | None, tls: Any) -> Any:
    """A channel of `grpc` or of `grpc.aio`, which make theirs alike."""
    tls = tls if tls is not None else environment_credentials()
    place, options = server_address(address), _channel_options()
    if tls is None:
        return library.insecure_channel(place, options=options)
    return library.secure_channel(place, tls, options=options)


def _key_metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    key = api_key or os.environ.get(API_KEY_VARIABLE)
    return (("authorization", f"Bearer {key}"),) if key else ()


def _watch_request(
    interval_seconds: float | None, heartbeat_seconds: float | None
) -> cluster_pb2.WatchLedgerRequest:
    return cluster_pb2.WatchLedgerRequest(
        interval_seconds=interval_seconds, heartbeat_seconds=heartbeat_seconds
    )


def _channel_options() -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.enable_http_proxy", 0),
    ]
