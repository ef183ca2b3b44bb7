"""A gRPC server of our own in front of a dispatcher: both services, health, reflection.

Used where Ray Serve's proxy is not wanted (tests, one machine). Knows nothing of engines. Binds to
this machine only unless told otherwise. Units: bytes, milliseconds where gRPC's options say so.
"""

from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection, reflection_pb2

from blockyard.cluster.adapters.adapter_api import AdapterApi
from blockyard.cluster.chaos.chaos_api import ChaosApi
from blockyard.cluster.dispatch import Dispatcher
from blockyard.cluster.grpc_api import SERVED_SERVICES, ClusterApi, GenerationApi, HealthApi
from blockyard.cluster.grpc_handlers import (
    add_chaos_to_server,
    add_cluster_to_server,
    add_generation_to_server,
    add_health_to_server,
)
from blockyard.cluster.grpc_keys import KeyCheck, caller_of
from blockyard.cluster.grpc_status import call_status
from blockyard.cluster.request.api_error import ApiError
from blockyard.cluster.request.api_keys import KeyRing
from blockyard.cluster.request.generation import GenerationService, unexpected_error
from blockyard.cluster.request.observer import RequestObserver
from blockyard.cluster.request.request_service import RequestService
from blockyard.cluster.request.token_service import TokenService
from blockyard.cluster.states.state_api import StateApi
from blockyard.cluster.tls import TlsFiles
from blockyard.cluster.tokenizer import ModelTokenizer

__all__ = ["DEFAULT_ADDRESS", "MAX_MESSAGE_BYTES", "GrpcFront", "server_options"]

DEFAULT_ADDRESS = "127.0.0.1:50051"

MAX_MESSAGE_BYTES = 16 * 1024 * 1024

M = TypeVar("M", bound=Message)


def server_options() -> list[tuple[str, int]]:
    """Options of every gRPC server that faces clients."""
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        # Two servers on one port would share its connections at random.
        ("grpc.so_reuseport", 0),
        # Clients may ping during a long silent call without being sent away.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        # A client whose machine vanished is noticed, so that its blocks are freed.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]


class GrpcFront:
    """The server's life: start, then stop with time for calls to end."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        tokenizers: Mapping[str, ModelTokenizer],
        health_watch_interval_seconds: float = 1.0,
        keys: KeyRing | None = None,
        observer: RequestObserver | None = None,
        chaos: ChaosApi | None = None,
        states: StateApi | None = None,
        adapters: AdapterApi | None = None,
    ) -> None:
        """With `keys` every call but those for health and reflection must show one of them."""
        keys = keys if keys is not None else KeyRing()
        generation = self._generation = GenerationApi(
            GenerationService(dispatcher, tokenizers, keys=keys, observer=observer),
            TokenService(dispatcher, tokenizers),
            RequestService(dispatcher),
        )
        self._server = grpc.aio.server(options=server_options(), interceptors=(KeyCheck(keys),))
        add_generation_to_server(_GenerationServicer(generation, keys), self._server)
        self._cluster = ClusterApi(dispatcher, tokenizers, states, adapters)
        add_cluster_to_server(_ClusterServicer(self._cluster, keys), self._server)
        if chaos is not None:
            add_chaos_to_server(_ChaosServicer(chaos), self._server)
        add_health_to_server(
            _HealthServicer(HealthApi(dispatcher, health_watch_interval_seconds)), self._server
        )
        _add_reflection(self._server)

    async def start(self, address: str = DEFAULT_ADDRESS, tls: TlsFiles | None = None) -> int:
        """Begin to serve; the port, which is chosen when `address` ends in `:0`.

        Raises:
            OSError: the address cannot be bound, or a file of `tls` cannot be read.
        """
        credentials = tls.grpc_credentials() if tls is not None else None
        try:
            if credentials is not None:
                port = self._server.add_secure_port(address, credentials)
            else:
                port = self._server.add_insecure_port(address)
        except RuntimeError:
            port = 0
        if not port:
            raise OSError(f"cannot listen on {address}; is another server running there?")
        await self._server.start()
        return int(port)

    async def stop(self, grace_seconds: float | None) -> None:
        """Take no new calls; give those under way so long, then cancel them."""
        self._cluster.end_watches()  # they would go on for the whole of the grace
        await self._server.stop(grace_seconds)
        await self._generation.close()

    async def wait(self) -> None:
        """Return when the server has stopped."""
        await self._server.wait_for_termination()


class _GenerationServicer:
    def __init__(self, api: GenerationApi, keys: KeyRing) -> None:
        self._api = api
        self._keys = keys

    async def Generate(self, request: Any, context: Any) -> Any:
        return await _answer(self._api.generate(request, caller_of(context, self._keys)), context)

    async def GenerateStream(self, request: Any, context: Any) -> None:
        await _answer_stream(
            self._api.generate_stream(request, caller_of(context, self._keys)), context
        )

    async def ResumeStream(self, request: Any, context: Any) -> None:
        await _answer_stream(
            self._api.resume_stream(request, caller_of(context, self._keys)), context
        )

    async def Explain(self, request: Any, context: Any) -> Any:
        return await _answer(self._api.explain(request, caller_of(context, self._keys)), context)

    async def Abort(self, request: Any, context: Any) -> Any:
        return await _answer(self._api.abort(request, caller_of(context, self._keys)), context)

    async def Tokenize(self, request: Any, context: Any) -> Any:
        return await _answer(self._api.tokenize(request), context)

    async def Detokenize(self, request: Any, context: Any) -> Any:
        return await _answer(self._api.detokenize(request), context)


class _ClusterServicer:
    def __init__(self, api: ClusterApi, keys: KeyRing) -> None:
        self._api = api
        self._keys = keys

    async def GetLedger(self, request: Any, context: Any) -> Any:
        return await _answer(self._api.get_ledger(request), context)

    async def GetArrivals(self, request: Any, context: Any) -> Any:
        return await _answer(self._api.get_arrivals(request), context)

    async def WatchLedger(self, request: Any, context: Any) -> None:
        await _answer_stream(self._api.watch_ledger(request), context)

    async def GetModel(self, request: Any, context: Any) -> Any:
        return await _answer(self._api.get_model(request), context)

    async def Sleep(self, request: Any, context: Any) -> Any:
        return await _answer(self._api.sleep(request, caller_of(context, self._keys)), context)

    async def WakeUp(self, request: Any, context: Any) -> Any:
        return await _answer(self._api.wake_up(request, caller_of(context, self._keys)), context)

    async def UpdateWeights(self, request: Any, context: Any) -> Any:
        told = self._api.update_weights(request, caller_of(context, self._keys))
        return await _answer(told, context)

    async def LoadAdapter(self, request: Any, context: Any) -> Any:
        told = self._api.load_adapter(request, caller_of(context, self._keys))
        return await _answer(told, context)

    async def UnloadAdapter(self, request: Any, context: Any) -> Any:
        told = self._api.unload_adapter(request, caller_of(context, self._keys))
        return await _answer(told, context)


class _ChaosServicer:
    def __init__(self, api: ChaosApi) -> None:
        self._api = api

    async def Disturb(self, request: Any, context: Any) -> Any:
        return await _answer(self._api.disturb(request), context)


class _HealthServicer:
    def __init__(self, api: HealthApi) -> None:
        self._api = api

    async def Check(self, request: Any, context: Any) -> Any:
        return await _answer(self._api.check(request), context)

    async def List(self, request: Any, context: Any) -> Any:
        return await _answer(self._api.list(request), context)

    async def Watch(self, request: Any, context: Any) -> None:
        await _answer_stream(self._api.watch(request), context)


async def _answer(answer: Awaitable[M], context: Any) -> M:
    try:
        return await answer
    except ApiError as error:
        failure = error
    except Exception as error:
        failure = unexpected_error(error, "a gRPC call")
    await _abort(context, failure)
    raise failure  # `abort` has raised already


async def _answer_stream(messages: AsyncGenerator[M, None], context: Any) -> None:
    """Write messages as fast as the client takes them, and close them on every way out.

    A method that was itself a generator would be left unclosed when the client leaves while a
    message is being written.
    """
    try:
        async with aclosing(messages):
            async for message in messages:
                await context.write(message)
        return
    except ApiError as error:
        failure = error
    except Exception as error:
        failure = unexpected_error(error, "a gRPC stream")
    await _abort(context, failure)


async def _abort(context: Any, error: ApiError) -> None:
    status = call_status(error)
    await context.abort(status.code, status.message, status.trailing_metadata)


def _add_reflection(server: Any) -> None:
    names = (*SERVED_SERVICES, "grpc.health.v1.Health", reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    # Newer clients ask for version 1 first; its messages are those of v1alpha on the wire.
    servicer = reflection.aio.ReflectionServicer(names)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "grpc.reflection.v1.ServerReflection", {"ServerReflectionInfo": handler}
            ),
        )
    )
