"""What each HTTP route answers: OpenAI's API over the one request path, and a few of our own.

Every failure is an `ApiError` and is told in OpenAI's shape. A client that leaves has its request
aborted at once, streaming or not. Knows no server. Units: bytes, seconds.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from blockyard.cluster.dispatch import Dispatcher
from blockyard.cluster.http.chat_answer import ChatChunks, chat_completion
from blockyard.cluster.http.chat_request import ChatRequest, read_chat_request
from blockyard.cluster.http.client_presence import EventStream, unless_left
from blockyard.cluster.http.completion_answer import CompletionChunks, completion
from blockyard.cluster.http.completion_request import CompletionRequest, read_completion_request
from blockyard.cluster.http.http_errors import error_body, error_headers, http_status
from blockyard.cluster.http.key_gate import KeyGate, caller_of
from blockyard.cluster.http.prompt_streams import merged
from blockyard.cluster.http.server_routes import ServerRoutes
from blockyard.cluster.http.token_routes import read_detokenize, read_tokenize
from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.api_keys import KeyRing
from blockyard.cluster.request.caller import Caller
from blockyard.cluster.request.generation import GenerationService, unexpected_error
from blockyard.cluster.request.limits import invalid
from blockyard.cluster.request.token_service import TokenService
from blockyard.cluster.request.whole_answer import WholeAnswer
from blockyard.cluster.tokenizer import ModelTokenizer

__all__ = ["MAX_BODY_BYTES", "HttpApi"]

MAX_BODY_BYTES = 16 * 1024 * 1024

_GONE = 499
"""Nobody reads this status; logs do."""

Handler = Callable[[Request], Awaitable[Response]]
Events = AsyncGenerator[bytes, None]


class HttpApi:
    """The routes, and those of `pages` for people; `app` is an ASGI application."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        tokenizers: Mapping[str, ModelTokenizer],
        clock: Callable[[], float] = time.time,
        pages: Sequence[BaseRoute] = (),
        keys: KeyRing | None = None,
    ) -> None:
        """With `keys` every call but probes must show one of them."""
        keys = keys if keys is not None else KeyRing()
        self._service = GenerationService(dispatcher, tokenizers, keys=keys)
        self._tokens = TokenService(dispatcher, tokenizers)
        self._clock = clock
        server = ServerRoutes(dispatcher, int(clock()))
        routes: list[tuple[str, str, Handler]] = [
            ("POST", "/v1/chat/completions", self._chat),
            ("POST", "/v1/completions", self._complete),
            ("POST", "/tokenize", self._tokenize),
            ("POST", "/detokenize", self._detokenize),
            ("GET", "/v1/models", server.models),
            ("GET", "/v1/models/{model:path}", server.model),
            ("GET", "/health", server.health),
            ("GET", "/ready", server.ready),
            ("GET", "/metrics", server.metrics),
        ]
        app = Starlette(
            routes=[
                *(Route(path, _guarded(handler), methods=[how]) for how, path, handler in routes),
                *pages,
            ],
            exception_handlers={HTTPException: _no_such_route},
        )
        self.app = KeyGate(app, keys)

    async def _chat(self, request: Request) -> Response:
        asked = read_chat_request(await _body(request))
        created, caller = int(self._clock()), caller_of(request)
        if asked.stream:
            return await _event_response(request, self._chat_events(asked, created, caller))
        answering = self._service.generate(asked.message, caller)
        response = await unless_left(request.receive, answering)
        return _json(chat_completion(response, created))

    async def _chat_events(self, asked: ChatRequest, created: int, caller: Caller) -> Events:
        chunks = ChatChunks(created, asked.include_usage)
        async with aclosing(self._service.stream(asked.message, caller)) as stream:
            async for chunk in stream:
                if pieces := chunks.pieces(chunk):
                    yield _events(pieces)
        yield _events(chunks.last()) + _DONE

    async def _complete(self, request: Request) -> Response:
        asked = read_completion_request(await _body(request))
        created, caller = int(self._clock()), caller_of(request)
        if asked.stream:
            return await _event_response(request, self._completion_events(asked, created, caller))
        body = await unless_left(request.receive, self._completion(asked, created, caller))
        return _json(body)

    async def _completion(
        self, asked: CompletionRequest, created: int, caller: Caller
    ) -> dict[str, Any]:
        answers = [WholeAnswer() for _ in asked.messages]
        streams = [self._service.stream(message, caller) for message in asked.messages]
        async with aclosing(merged(streams)) as chunks:
            async for number, chunk in chunks:
                answers[number].add(chunk)
        responses = [answer.response() for answer in answers]
        return completion(responses, asked.num_choices, created)

    async def _completion_events(
        self, asked: CompletionRequest, created: int, caller: Caller
    ) -> Events:
        told = CompletionChunks(asked.num_choices, created, asked.include_usage)
        streams = [self._service.stream(message, caller) for message in asked.messages]
        async with aclosing(merged(streams)) as chunks:
            async for number, chunk in chunks:
                yield _events(told.pieces(number, chunk))
        yield _events(told.last()) + _DONE

    async def _tokenize(self, request: Request) -> Response:
        told = await self._tokens.tokenize(read_tokenize(await _body(request)))
        return _json(
            {
                "count": len(told.token_ids),
                "max_model_len": told.context_tokens,
                "tokens": list(told.token_ids),
            }
        )

    async def _detokenize(self, request: Request) -> Response:
        told = await self._tokens.detokenize(read_detokenize(await _body(request)))
        return _json({"prompt": told.text})


_DONE = b"data: [DONE]\n\n"


def _guarded(handler: Handler) -> Handler:
    """The handler, its failures told as they should be."""

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except ApiError as error:
            failure = error
        except ClientDisconnect:
            return Response(status_code=_GONE)
        except Exception as error:
            failure = unexpected_error(error, "an HTTP request")
        return _failed(failure)

    return guarded


async def _event_response(request: Request, events: Events) -> Response:
    """A stream whose first event is there; a failure before it has a status of its own."""
    try:
        first = await unless_left(request.receive, _first(events))
    except BaseException:
        await events.aclose()
        raise
    return EventStream(first, _with_failure(events))


async def _first(events: Events) -> bytes:
    return await anext(events)


async def _with_failure(events: Events) -> Events:
    """The rest of a stream; a failure in its middle is its last event."""
    try:
        async with aclosing(events):
            async for event in events:
                yield event
        return
    except ApiError as error:
        failure = error
    except Exception as error:
        failure = unexpected_error(error, "an HTTP stream")
    yield _events([error_body(failure)])


def _events(pieces: list[dict[str, Any]]) -> bytes:
    return b"".join(b"data: " + msgspec.json.encode(piece) + b"\n\n" for piece in pieces)


async def _body(request: Request) -> object:
    """The JSON of a request, read no further than it may be long."""
    size = 0
    parts: list[bytes] = []
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise invalid("body", f"has more than {MAX_BODY_BYTES:,} bytes")
        parts.append(part)
    try:
        return (
            await asyncio.to_thread(msgspec.json.decode, b"".join(parts))
            if (size > _QUICK_BODY_BYTES)
            else msgspec.json.decode(b"".join(parts))
        )
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid("body", f"is not JSON: {error}") from None


_QUICK_BODY_BYTES = 1 << 18
"""Bodies up to this are parsed at once; larger ones in a thread, so that streams go on."""


def _json(body: dict[str, Any], status: int = 200, headers: Mapping[str, str] = {}) -> Response:
    encoded = msgspec.json.encode(body)
    return Response(encoded, status, dict(headers), media_type="application/json")


def _failed(error: ApiError) -> Response:
    return _json(error_body(error), http_status(error), error_headers(error))


async def _no_such_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = ApiCode.NOT_FOUND if status == 404 else ApiCode.INVALID_ARGUMENT
    what = f"{request.method} {request.url.path[:80]} is not served here"
    return _json(error_body(ApiError(code, "", what)), status)
