"""A Serve replica that hosts one ingress: its own gRPC listener, and Serve's gRPC methods.

Both fronts share the same API objects. Clients use the ingress's own listener unless Ray Serve's
proxy was switched on; then that reaches the methods below. Loads no torch.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import Message

from blockyard.cluster.actors import kill_central, locate_central
from blockyard.cluster.adapters.adapter_api import AdapterApi, AdapterLimits
from blockyard.cluster.books.metrics_endpoint import MetricsEndpoint
from blockyard.cluster.chaos.chaos_api import ChaosApi
from blockyard.cluster.config import ServeConfig
from blockyard.cluster.dashboard.yard_feed import YardFeed
from blockyard.cluster.dashboard.yard_routes import yard_routes
from blockyard.cluster.dashboard.yard_view import YardView
from blockyard.cluster.grpc_api import ClusterApi, GenerationApi, HealthApi
from blockyard.cluster.grpc_front import GrpcFront
from blockyard.cluster.grpc_keys import traceparent_of
from blockyard.cluster.grpc_status import ServeContext, set_status
from blockyard.cluster.http_front import HttpFront
from blockyard.cluster.ingress import ClusterDispatcher
from blockyard.cluster.logs import start_logging
from blockyard.cluster.request.admin import AdminDoor
from blockyard.cluster.request.api_error import ApiError
from blockyard.cluster.request.api_keys import KeyRing, read_api_keys
from blockyard.cluster.request.caller import Caller
from blockyard.cluster.request.generation import GenerationService, unexpected_error
from blockyard.cluster.request.observer import RequestObserver
from blockyard.cluster.request.request_service import RequestService
from blockyard.cluster.request.token_service import TokenService
from blockyard.cluster.states.state_api import StateApi
from blockyard.cluster.tokenizer import load_tokenizer
from blockyard.cluster.tracing import make_tracer

__all__ = ["IngressReplica"]

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)


class IngressReplica:
    """One ingress for every model. What listens where is in the first model's configuration.

    `groups` are Serve's handles of the models' groups: having them makes Serve start them.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, configs: tuple[ServeConfig, ...], *groups: Any
    ) -> None:
        config = configs[0]
        start_logging(config.logs)
        self._config = config
        self._tracer = make_tracer(config.trace_endpoint, "ingress")
        observer = RequestObserver(self._tracer, config.logs.prompts)
        models = tuple(each.model for each in configs)
        tokenizers = {
            each.model.name: load_tokenizer(
                each.model.directory, each.tool_call_parser, each.reasoning_parser
            )
            for each in configs
        }
        locate = partial(locate_central, config)
        on_demand = [each.model.name for each in configs if each.min_groups == 0]
        self._dispatcher = ClusterDispatcher(
            models,
            locate,
            config.resume_seconds,
            on_demand,
            {each.model.name: each.adapters for each in configs},
        )
        self._link = asyncio.create_task(self._dispatcher.run(), name="central-link")
        self._generation = GenerationApi(
            GenerationService(self._dispatcher, tokenizers, observer=observer),
            TokenService(self._dispatcher, tokenizers),
            RequestService(self._dispatcher),
        )
        keys = KeyRing()
        if config.api_keys_file is not None:
            keys = KeyRing(read_api_keys(Path(config.api_keys_file)))
        links, binder = self._dispatcher.links, self._dispatcher.binder
        door = AdminDoor(config.allow_admin, bool(keys))
        states = StateApi(self._dispatcher, binder, lambda: links.groups.values(), door)
        limits = {c.model.name: AdapterLimits(c.adapters_root, c.max_adapter_rank) for c in configs}
        adapters = AdapterApi(self._dispatcher, door, limits)
        self._cluster = ClusterApi(self._dispatcher, tokenizers, states, adapters)
        self._health = HealthApi(self._dispatcher)
        self._metrics: MetricsEndpoint | None = None
        chaos = ChaosApi(links, self._kill_central) if config.allow_chaos else None
        self._front = GrpcFront(
            self._dispatcher,
            tokenizers,
            keys=keys,
            observer=observer,
            chaos=chaos,
            states=states,
            adapters=adapters,
        )
        port = await self._front.start(f"{config.grpc_host}:{config.grpc_port}", config.tls)
        logger.info("the ingress listens on port %d", port)
        chats = [name for name, each in tokenizers.items() if each.has_chat_template]
        self._yard = YardFeed(self._dispatcher, view=YardView(chats))
        self._http = HttpFront(
            self._dispatcher, tokenizers, yard_routes(self._yard), keys, observer, states, adapters
        )
        if config.http_port is not None:
            await self._http.start(config.http_host, config.http_port, config.tls)
        if config.metrics_port is not None:
            self._metrics = MetricsEndpoint(self._dispatcher)
            await self._metrics.start(config.metrics_host, config.metrics_port)

    async def Generate(self, request: Any, grpc_context: ServeContext) -> Any:
        """`blockyard.v1.Generation.Generate` behind Serve's proxy."""
        caller = _caller(grpc_context)
        return await _answer(self._generation.generate(request, caller), grpc_context)

    async def GenerateStream(self, request: Any, grpc_context: ServeContext) -> AsyncIterator[Any]:
        """`blockyard.v1.Generation.GenerateStream` behind Serve's proxy."""
        caller = _caller(grpc_context)
        messages = _stream(self._generation.generate_stream(request, caller), grpc_context)
        async with aclosing(messages):
            async for message in messages:
                yield message

    async def ResumeStream(self, request: Any, grpc_context: ServeContext) -> AsyncIterator[Any]:
        """`blockyard.v1.Generation.ResumeStream` behind Serve's proxy."""
        messages = _stream(self._generation.resume_stream(request), grpc_context)
        async with aclosing(messages):
            async for message in messages:
                yield message

    async def Explain(self, request: Any, grpc_context: ServeContext) -> Any:
        """`blockyard.v1.Generation.Explain` behind Serve's proxy."""
        return await _answer(self._generation.explain(request), grpc_context)

    async def Abort(self, request: Any, grpc_context: ServeContext) -> Any:
        """`blockyard.v1.Generation.Abort` behind Serve's proxy."""
        return await _answer(self._generation.abort(request), grpc_context)

    async def Tokenize(self, request: Any, grpc_context: ServeContext) -> Any:
        """`blockyard.v1.Generation.Tokenize` behind Serve's proxy."""
        return await _answer(self._generation.tokenize(request), grpc_context)

    async def Detokenize(self, request: Any, grpc_context: ServeContext) -> Any:
        """`blockyard.v1.Generation.Detokenize` behind Serve's proxy."""
        return await _answer(self._generation.detokenize(request), grpc_context)

    async def GetLedger(self, request: Any, grpc_context: ServeContext) -> Any:
        """`blockyard.v1.Cluster.GetLedger` behind Serve's proxy."""
        return await _answer(self._cluster.get_ledger(request), grpc_context)

    async def GetArrivals(self, request: Any, grpc_context: ServeContext) -> Any:
        """`blockyard.v1.Cluster.GetArrivals` behind Serve's proxy."""
        return await _answer(self._cluster.get_arrivals(request), grpc_context)

    async def WatchLedger(self, request: Any, grpc_context: ServeContext) -> AsyncIterator[Any]:
        """`blockyard.v1.Cluster.WatchLedger` behind Serve's proxy."""
        messages = _stream(self._cluster.watch_ledger(request), grpc_context)
        async with aclosing(messages):
            async for message in messages:
                yield message

    async def GetModel(self, request: Any, grpc_context: ServeContext) -> Any:
        """`blockyard.v1.Cluster.GetModel` behind Serve's proxy."""
        return await _answer(self._cluster.get_model(request), grpc_context)

    async def Sleep(self, request: Any, grpc_context: ServeContext) -> Any:
        """`blockyard.v1.Cluster.Sleep` behind Serve's proxy."""
        return await _answer(self._cluster.sleep(request, _caller(grpc_context)), grpc_context)

    async def WakeUp(self, request: Any, grpc_context: ServeContext) -> Any:
        """`blockyard.v1.Cluster.WakeUp` behind Serve's proxy."""
        return await _answer(self._cluster.wake_up(request, _caller(grpc_context)), grpc_context)

    async def UpdateWeights(self, request: Any, grpc_context: ServeContext) -> Any:
        """`blockyard.v1.Cluster.UpdateWeights` behind Serve's proxy."""
        told = self._cluster.update_weights(request, _caller(grpc_context))
        return await _answer(told, grpc_context)

    async def LoadAdapter(self, request: Any, grpc_context: ServeContext) -> Any:
        """`blockyard.v1.Cluster.LoadAdapter` behind Serve's proxy."""
        told = self._cluster.load_adapter(request, _caller(grpc_context))
        return await _answer(told, grpc_context)

    async def UnloadAdapter(self, request: Any, grpc_context: ServeContext) -> Any:
        """`blockyard.v1.Cluster.UnloadAdapter` behind Serve's proxy."""
        told = self._cluster.unload_adapter(request, _caller(grpc_context))
        return await _answer(told, grpc_context)

    async def Check(self, request: Any, grpc_context: ServeContext) -> Any:
        """`grpc.health.v1.Health.Check` behind Serve's proxy."""
        return await _answer(self._health.check(request), grpc_context)

    async def List(self, request: Any, grpc_context: ServeContext) -> Any:
        """`grpc.health.v1.Health.List` behind Serve's proxy."""
        return await _answer(self._health.list(request), grpc_context)

    async def Watch(self, request: Any, grpc_context: ServeContext) -> AsyncIterator[Any]:
        """`grpc.health.v1.Health.Watch` behind Serve's proxy."""
        messages = _stream(self._health.watch(request), grpc_context)
        async with aclosing(messages):
            async for message in messages:
                yield message

    async def _kill_central(self) -> None:
        await kill_central(self._config)

    async def check_health(self) -> None:
        """Called by Serve; raising has the replica replaced."""
        if self._link.done():
            raise RuntimeError("the link to the central scheduler has ended for good")

    async def __del__(self) -> None:
        """Called by Serve once at shutdown: let streams end, then hang up."""
        front: GrpcFront | None = getattr(self, "_front", None)
        if front is None:
            return
        self._cluster.end_watches()
        self._yard.end()
        grace_seconds = self._config.drain_seconds
        await asyncio.gather(front.stop(grace_seconds), self._http.stop(grace_seconds))
        await self._generation.close()
        if self._metrics is not None:
            await self._metrics.stop()
        self._link.cancel()
        await asyncio.gather(self._link, return_exceptions=True)
        await self._dispatcher.close()
        await asyncio.to_thread(self._tracer.close)


def _caller(context: ServeContext) -> Caller:
    """Who calls through Serve's proxy, which checks no keys and passes on no deadline."""
    return Caller(traceparent=traceparent_of(context.invocation_metadata()))


async def _answer(answer: Awaitable[M], context: ServeContext) -> M:
    try:
        return await answer
    except ApiError as error:
        failure = error
    except Exception as error:
        failure = unexpected_error(error, "a gRPC call through Serve")
    set_status(context, failure)
    # Serve sends the code and details set above; the exception itself only ends the call.
    raise failure


async def _stream(
    messages: AsyncGenerator[M, None], context: ServeContext
) -> AsyncGenerator[M, None]:
    try:
        async with aclosing(messages):
            async for message in messages:
                yield message
        return
    except ApiError as error:
        failure = error
    except Exception as error:
        failure = unexpected_error(error, "a gRPC stream through Serve")
    set_status(context, failure)
    raise failure
