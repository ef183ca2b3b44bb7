"""What each gRPC method answers, free of any gRPC server.

`grpc_front.py` serves these over a plain server; a Ray Serve deployment can call the same methods
and report `ApiError` through its own context with `grpc_status.py`. Units: as in the protos.
"""

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from blockyard.cluster.adapters.adapter_api import AdapterApi, adapter_message
from blockyard.cluster.adapters.adapter_directory import adapters_of
from blockyard.cluster.books.arrival_message import LEAST_SALT_BYTES, arrivals_message
from blockyard.cluster.books.central_message import ask_central, central_message
from blockyard.cluster.books.ledger_message import ledger_message
from blockyard.cluster.books.ledger_watch import LedgerWatches
from blockyard.cluster.dispatch import ArrivalSource, Dispatcher, GroupReport
from blockyard.cluster.health_api import SERVED_SERVICES, HealthApi
from blockyard.cluster.request.api_error import ApiCode, ApiError, from_refusal
from blockyard.cluster.request.caller import ANYBODY, Caller
from blockyard.cluster.request.generation import GenerationService, unexpected_error
from blockyard.cluster.request.limits import check_known_fields, check_name, invalid
from blockyard.cluster.request.malformed_message import MalformedMessage, well_formed
from blockyard.cluster.request.request_service import RequestService
from blockyard.cluster.request.resumable import ResumableStreams, check_grace
from blockyard.cluster.request.served_model import find_served
from blockyard.cluster.request.token_service import TokenService
from blockyard.cluster.states.state_api import StateApi
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import cluster_pb2, generation_pb2
from blockyard.scheduler.request import RequestRefused

__all__ = ["SERVED_SERVICES", "ClusterApi", "GenerationApi", "HealthApi"]

_MESSAGE_BYTES = 1024
"""What a message that is kept takes in memory beside its text, about."""


class GenerationApi:
    """`blockyard.v1.Generation`."""

    def __init__(
        self, service: GenerationService, tokens: TokenService, requests: RequestService
    ) -> None:
        self._service = service
        self._tokens = tokens
        self._requests = requests
        self._resumable: ResumableStreams[generation_pb2.GenerateChunk] = ResumableStreams(
            lambda chunk: chunk.ByteSize() + _MESSAGE_BYTES, lambda chunk: len(chunk.token_ids)
        )

    async def generate(
        self, request: generation_pb2.GenerateRequest | MalformedMessage, caller: Caller = ANYBODY
    ) -> generation_pb2.GenerateResponse:
        """The whole answer. Raises `ApiError`."""
        asked: generation_pb2.GenerateRequest = well_formed(request)
        if asked.HasField("resume_seconds"):
            raise invalid("resume_seconds", "is for streams; this answer comes whole")
        return await self._service.generate(asked, caller)

    async def generate_stream(
        self, request: generation_pb2.GenerateRequest | MalformedMessage, caller: Caller = ANYBODY
    ) -> AsyncGenerator[generation_pb2.GenerateChunk, None]:
        """The answer in pieces; close it to leave early. Raises `ApiError`."""
        asked: generation_pb2.GenerateRequest = well_formed(request)
        if asked.HasField("resume_seconds"):
            check_grace(asked.resume_seconds)
            asked.request_id = asked.request_id or secrets.token_hex(12)
            source = self._service.stream(asked, caller)
            named = (caller.tenant, asked.request_id, asked.resume_seconds)
            answer = self._resumable.start(*named, source)
        else:
            answer = self._service.stream(asked, caller)
        async with aclosing(answer) as chunks:
            async for chunk in chunks:
                yield chunk

    async def resume_stream(
        self, request: generation_pb2.ResumeRequest | MalformedMessage, caller: Caller = ANYBODY
    ) -> AsyncGenerator[generation_pb2.GenerateChunk, None]:
        """The rest of a stream that was cut off. Raises `ApiError`."""
        asked: generation_pb2.ResumeRequest = well_formed(request)
        check_known_fields("request", asked)
        check_name("request_id", asked.request_id)
        place = (asked.request_id, asked.tokens_seen, "tokens_seen")
        async with aclosing(self._resumable.resume(caller.tenant, *place)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def close(self) -> None:
        """Give up the streams that wait to be resumed."""
        await self._resumable.close()

    async def tokenize(
        self, request: generation_pb2.TokenizeRequest | MalformedMessage
    ) -> generation_pb2.TokenizeResponse:
        """A prompt's tokens. Raises `ApiError`."""
        return await self._tokens.tokenize(well_formed(request))

    async def explain(
        self, request: generation_pb2.ExplainRequest | MalformedMessage, caller: Caller = ANYBODY
    ) -> generation_pb2.ExplainResponse:
        """Why a request waits. Raises `ApiError`."""
        return await self._requests.explain(well_formed(request), caller)

    async def abort(
        self, request: generation_pb2.AbortRequest | MalformedMessage, caller: Caller = ANYBODY
    ) -> generation_pb2.AbortResponse:
        """End a request. Raises `ApiError`."""
        return await self._requests.abort(well_formed(request), caller)

    async def detokenize(
        self, request: generation_pb2.DetokenizeRequest | MalformedMessage
    ) -> generation_pb2.DetokenizeResponse:
        """The text of tokens. Raises `ApiError`."""
        return await self._tokens.detokenize(well_formed(request))


class ClusterApi:
    """`blockyard.v1.Cluster`."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        tokenizers: Mapping[str, ModelTokenizer],
        states: StateApi | None = None,
        adapters: AdapterApi | None = None,
    ) -> None:
        """Without `states` models are awake, and stay so; without `adapters` theirs stay, too."""
        self._dispatcher = dispatcher
        self._tokenizers = tokenizers
        self._states = states
        self._adapters = adapters
        self._watches = LedgerWatches(self._ledger)

    async def get_ledger(
        self, request: cluster_pb2.GetLedgerRequest | MalformedMessage
    ) -> cluster_pb2.LedgerResponse:
        """The books of every group. Raises `ApiError`."""
        return await self._ledger(audit=well_formed(request).audit, memory=True)

    async def watch_ledger(
        self, request: cluster_pb2.WatchLedgerRequest | MalformedMessage
    ) -> AsyncGenerator[cluster_pb2.LedgerResponse, None]:
        """The books now and again as they change, until the client leaves. Raises `ApiError`."""
        async with aclosing(self._watches.watch(well_formed(request))) as messages:
            async for message in messages:
                yield message

    async def get_arrivals(
        self, request: cluster_pb2.GetArrivalsRequest | MalformedMessage
    ) -> cluster_pb2.ArrivalsResponse:
        """What has been asked for since the last such call. Raises `ApiError`."""
        asked: cluster_pb2.GetArrivalsRequest = well_formed(request)
        if len(asked.salt) < LEAST_SALT_BYTES:
            raise ApiError(
                ApiCode.INVALID_ARGUMENT,
                "salt",
                f"salt has {len(asked.salt)} bytes; draw at least {LEAST_SALT_BYTES} by chance",
            )
        if not isinstance(self._dispatcher, ArrivalSource):
            raise ApiError(ApiCode.UNAVAILABLE, "", "no engine here tells what it is asked for")
        after = dict(asked.after)
        return arrivals_message(await self._dispatcher.arrivals(after), after, asked.salt)

    def end_watches(self) -> None:
        """Let every stream of the books end, now and from now on."""
        self._watches.end()

    async def get_model(
        self, request: cluster_pb2.GetModelRequest | MalformedMessage
    ) -> cluster_pb2.ModelResponse:
        """Facts of one model. Raises `ApiError`."""
        served = find_served(self._dispatcher, well_formed(request).name, "name")
        model = served.model
        tokenizer = self._tokenizers.get(model.name)
        response = cluster_pb2.ModelResponse(
            name=served.name,
            base_model=model.name if served.adapter is not None else "",
            adapters=map(adapter_message, adapters_of(self._dispatcher, model.name)),
            architecture=model.architecture,
            context_tokens=model.context_tokens,
            vocab_size=model.vocab_size,
            eos_token_ids=model.eos_token_ids,
            has_chat_template=tokenizer is not None and tokenizer.has_chat_template,
        )
        if self._states is not None:
            state = self._states.state(model.name)
            response.sleeping, response.weight_version = state.sleeping, state.weight_version
        for report in await self._reports():
            if report.model == model.name:
                response.block_size = report.ledger.block_size
                break
        return response

    async def sleep(self, request: Any, caller: Caller) -> cluster_pb2.ModelState:
        """Put a model to sleep. Raises `ApiError`."""
        return await self._stated().sleep(request, caller)

    async def wake_up(self, request: Any, caller: Caller) -> cluster_pb2.ModelState:
        """Wake a model. Raises `ApiError`."""
        return await self._stated().wake_up(request, caller)

    async def update_weights(self, request: Any, caller: Caller) -> cluster_pb2.ModelState:
        """Give a model other weights. Raises `ApiError`."""
        return await self._stated().update_weights(request, caller)

    def _stated(self) -> StateApi:
        if self._states is None:
            raise ApiError(ApiCode.PERMISSION_DENIED, "", "models stay awake behind this server")
        return self._states

    async def load_adapter(self, request: Any, caller: Caller = ANYBODY) -> cluster_pb2.Adapter:
        """Have a model be served with an adapter too. Raises `ApiError`."""
        return await self._adapter_calls().load(request, caller)

    async def unload_adapter(self, request: Any, caller: Caller = ANYBODY) -> cluster_pb2.Adapter:
        """Take no more requests for an adapter. Raises `ApiError`."""
        return await self._adapter_calls().unload(request, caller)

    def _adapter_calls(self) -> AdapterApi:
        if self._adapters is None:
            raise ApiError(ApiCode.UNAVAILABLE, "", "nobody here loads adapters")
        return self._adapters

    async def _ledger(
        self, audit: bool = False, memory: bool = False
    ) -> cluster_pb2.LedgerResponse:
        reports = await self._reports(audit, memory)
        central = central_message(await ask_central(self._dispatcher))
        groups = [ledger_message(report) for report in reports]
        return cluster_pb2.LedgerResponse(groups=groups, central=central)

    async def _reports(self, audit: bool = False, memory: bool = False) -> tuple[GroupReport, ...]:
        try:
            return await self._dispatcher.reports(audit, memory)
        except RequestRefused as refusal:
            raise from_refusal(refusal) from None
        except Exception as error:
            raise unexpected_error(error, "a call for the books") from error
