"""What each HTTP route answers: OpenAI's API over the one request path, and a few of our own.

Every failure is an `ApiError` and is told in OpenAI's shape. A client that leaves has its request
aborted at once, streaming or not. Knows no server. Units: bytes, seconds.
"""

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from blockyard.cluster.adapters.adapter_api import AdapterApi
from blockyard.cluster.dispatch import Dispatcher
from blockyard.cluster.http.adapter_routes import AdapterRoutes
from blockyard.cluster.http.chat_answer import ChatChunks, chat_completion
from blockyard.cluster.http.chat_request import ChatRequest, read_chat_request
from blockyard.cluster.http.client_presence import unless_left
from blockyard.cluster.http.completion_answer import CompletionChunks, completion
from blockyard.cluster.http.completion_request import CompletionRequest, read_completion_request
from blockyard.cluster.http.exchange import (
    DONE,
    Events,
    Handler,
    encode_events,
    event_response,
    guarded,
    json_response,
    read_body,
)
from blockyard.cluster.http.http_errors import error_body
from blockyard.cluster.http.key_gate import PAGE_FILE, KeyGate, caller_of
from blockyard.cluster.http.origin_gate import OriginGate
from blockyard.cluster.http.prompt_streams import merged
from blockyard.cluster.http.request_routes import RequestRoutes
from blockyard.cluster.http.response_routes import ResponseRoutes
from blockyard.cluster.http.resumable_events import ResumableEvents
from blockyard.cluster.http.server_routes import ServerRoutes
from blockyard.cluster.http.state_routes import StateRoutes
from blockyard.cluster.http.token_routes import read_detokenize, read_tokenize
from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.api_keys import KeyRing
from blockyard.cluster.request.caller import Caller
from blockyard.cluster.request.generation import GenerationService
from blockyard.cluster.request.observer import RequestObserver
from blockyard.cluster.request.request_service import RequestService
from blockyard.cluster.request.token_service import TokenService
from blockyard.cluster.request.whole_answer import WholeAnswer
from blockyard.cluster.states.state_api import StateApi
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb

__all__ = ["HttpApi"]


class HttpApi:
    """The routes, and those of `pages` for people; `app` is an ASGI application."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        tokenizers: Mapping[str, ModelTokenizer],
        clock: Callable[[], float] = time.time,
        pages: Sequence[BaseRoute] = (),
        keys: KeyRing | None = None,
        observer: RequestObserver | None = None,
        states: StateApi | None = None,
        adapters: AdapterApi | None = None,
    ) -> None:
        """With `keys` every call but probes and files of pages must show one of them."""
        keys = keys if keys is not None else KeyRing()
        self._service = GenerationService(dispatcher, tokenizers, keys=keys, observer=observer)
        self._tokens = TokenService(dispatcher, tokenizers)
        self._clock = clock
        server = ServerRoutes(dispatcher, int(clock()))
        requests = RequestRoutes(RequestService(dispatcher))
        self._resumable = ResumableEvents()
        responses = ResponseRoutes(self._service, self._resumable, clock)
        routes: list[tuple[str, str, Handler]] = [
            ("POST", "/v1/chat/completions", self._chat),
            ("POST", "/v1/completions", self._complete),
            ("POST", "/v1/responses", responses.create),
            ("GET", "/v1/requests/{request_id}", requests.explain),
            ("DELETE", "/v1/requests/{request_id}", requests.abort),
            ("POST", "/tokenize", self._tokenize),
            ("POST", "/detokenize", self._detokenize),
            ("GET", "/v1/models", server.models),
            ("GET", "/v1/models/{model:path}", server.model),
            ("GET", "/openapi.json", server.openapi),
            ("GET", "/health", server.health),
            ("GET", "/ready", server.ready),
            ("GET", "/metrics", server.metrics),
        ]
        served = len(routes)
        if states is not None:
            state = StateRoutes(dispatcher, states)
            routes += [
                ("POST", "/sleep", state.sleep),
                ("POST", "/wake_up", state.wake_up),
                ("GET", "/is_sleeping", state.is_sleeping),
                ("POST", "/update_weights_from_disk", state.update),
            ]
        if adapters is not None:
            adapter = AdapterRoutes(adapters)
            routes += [
                ("POST", "/v1/load_lora_adapter", adapter.load),
                ("POST", "/v1/unload_lora_adapter", adapter.unload),
            ]
        app = Starlette(
            routes=[
                *(Route(path, guarded(handler), methods=[how]) for how, path, handler in routes),
                *pages,
            ],
            exception_handlers={HTTPException: _no_such_route},
        )
        files = (page for page in pages if isinstance(page, Route) and page.name == PAGE_FILE)
        gate = KeyGate(app, keys, [page.path for page in files])
        admin_paths = [path for _, path, _ in routes[served:]]
        self.app = OriginGate(gate, admin_paths, bool(keys))

    async def close(self) -> None:
        """Give up the streams that wait to be resumed."""
        await self._resumable.close()

    async def _chat(self, request: Request) -> Response:
        asked = read_chat_request(await read_body(request))
        created, caller = int(self._clock()), caller_of(request)
        if asked.stream:
            events = self._resumable.events(
                request, asked.message, lambda: self._chat_events(asked, created, caller)
            )
            return await event_response(request, events)
        answering = self._service.generate(asked.message, caller)
        response = await unless_left(request.receive, answering)
        return json_response(chat_completion(response, created, asked.include_reasoning))

    async def _chat_events(self, asked: ChatRequest, created: int, caller: Caller) -> Events:
        chunks = ChatChunks(created, asked.include_usage, asked.include_reasoning)
        async with aclosing(self._service.stream(asked.message, caller)) as stream:
            async for chunk in stream:
                if pieces := chunks.pieces(chunk):
                    yield encode_events(pieces)
        yield encode_events(chunks.last()) + DONE

    async def _complete(self, request: Request) -> Response:
        asked = read_completion_request(await read_body(request))
        created, caller = int(self._clock()), caller_of(request)
        if asked.stream:
            events = self._resumable.events(
                request,
                asked.messages[0],
                lambda: self._completion_events(asked, created, caller),
            )
            return await event_response(request, events)
        body = await unless_left(request.receive, self._completion(asked, created, caller))
        return json_response(body)

    def _streams(
        self, asked: CompletionRequest, caller: Caller
    ) -> list[AsyncGenerator[pb.GenerateChunk, None]]:
        """One for each prompt; all of them are found by the name that answers bear."""
        first = asked.messages[0]
        if len(asked.messages) > 1:
            first.request_id = first.request_id or secrets.token_hex(12)
            caller = replace(caller, part_of=first.request_id)
        return [
            self._service.stream(message, replace(caller, first_number=number * asked.num_choices))
            for number, message in enumerate(asked.messages)
        ]

    async def _completion(
        self, asked: CompletionRequest, created: int, caller: Caller
    ) -> dict[str, Any]:
        answers = [WholeAnswer() for _ in asked.messages]
        async with aclosing(merged(self._streams(asked, caller))) as chunks:
            async for number, chunk in chunks:
                answers[number].add(chunk)
        responses = [answer.response() for answer in answers]
        return completion(responses, asked.num_choices, created)

    async def _completion_events(
        self, asked: CompletionRequest, created: int, caller: Caller
    ) -> Events:
        told = CompletionChunks(asked.num_choices, created, asked.include_usage)
        async with aclosing(merged(self._streams(asked, caller))) as chunks:
            async for number, chunk in chunks:
                yield encode_events(told.pieces(number, chunk))
        yield encode_events(told.last()) + DONE

    async def _tokenize(self, request: Request) -> Response:
        told = await self._tokens.tokenize(read_tokenize(await read_body(request)))
        return json_response(
            {
                "count": len(told.token_ids),
                "max_model_len": told.context_tokens,
                "tokens": list(told.token_ids),
            }
        )

    async def _detokenize(self, request: Request) -> Response:
        told = await self._tokens.detokenize(read_detokenize(await read_body(request)))
        return json_response({"prompt": told.text})


async def _no_such_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = ApiCode.NOT_FOUND if status == 404 else ApiCode.INVALID_ARGUMENT
    what = f"{request.method} {request.url.path[:80]} is not served here"
    return json_response(error_body(ApiError(code, "", what)), status)
