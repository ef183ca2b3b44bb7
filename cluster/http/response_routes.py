"""The route of OpenAI's responses, over the one request path."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from blockyard.cluster.http.client_presence import unless_left
from blockyard.cluster.http.exchange import Events, event_response, json_response, read_body
from blockyard.cluster.http.key_gate import caller_of
from blockyard.cluster.http.response_answer import ResponseAnswer
from blockyard.cluster.http.response_request import ResponseRequest, read_response_request
from blockyard.cluster.http.resumable_events import ResumableEvents
from blockyard.cluster.request.api_error import ApiError
from blockyard.cluster.request.caller import Caller
from blockyard.cluster.request.generation import GenerationService
from blockyard.protos import generation_pb2 as pb

__all__ = ["ResponseRoutes"]


class ResponseRoutes:
    """Answers `POST /v1/responses`."""

    def __init__(
        self, service: GenerationService, resumable: ResumableEvents, clock: Callable[[], float]
    ) -> None:
        """`clock` counts seconds since 1970."""
        self._service = service
        self._resumable = resumable
        self._clock = clock

    async def create(self, request: Request) -> Response:
        """One response, whole or as events."""
        asked = read_response_request(await read_body(request))
        answer = ResponseAnswer(int(self._clock()), asked.echoed)
        caller = caller_of(request)
        if asked.stream:
            events = self._resumable.events(
                request, asked.message, lambda: self._events(asked, answer, caller)
            )
            return await event_response(request, events)
        return json_response(await unless_left(request.receive, self._whole(asked, answer, caller)))

    async def _whole(
        self, asked: ResponseRequest, answer: ResponseAnswer, caller: Caller
    ) -> dict[str, Any]:
        async with aclosing(self._chunks(asked, caller)) as chunks:
            async for chunk in chunks:
                answer.add(chunk)
        return answer.body()

    async def _events(
        self, asked: ResponseRequest, answer: ResponseAnswer, caller: Caller
    ) -> Events:
        async with aclosing(self._chunks(asked, caller)) as chunks:
            async for chunk in chunks:
                if events := answer.add(chunk):
                    yield b"".join(map(_encoded, events))

    async def _chunks(
        self, asked: ResponseRequest, caller: Caller
    ) -> AsyncGenerator[pb.GenerateChunk, None]:
        try:
            async with aclosing(self._service.stream(asked.message, caller)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except ApiError as error:
            raise error.at(_NAMES.get(error.field, error.field)) from None


_NAMES = {
    "sampling.max_tokens": "max_output_tokens",
    "sampling.structure.json_schema": "text.format",
    "sampling.structure.json_object": "text.format",
    "chat.messages": "input",
}
"""What other routes call otherwise."""


def _encoded(event: dict[str, Any]) -> bytes:
    kind: str = event["type"]
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
