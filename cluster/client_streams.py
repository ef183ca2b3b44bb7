"""Calls as our clients make them; a stream that is cut off is read on, where that was asked for.

After a cut the client tries again until the request's grace is over. Tokens are neither lost nor
doubled: the place is told in tokens, and what an answer that has ended says again is left out.
Units: seconds, tokens.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, closing
from typing import Any

import grpc

from blockyard.cluster.client_error import ServerError, server_error
from blockyard.protos import generation_pb2 as pb

__all__ = [
    "open_chunks",
    "open_stream",
    "open_unary",
    "read_blocking_stream",
    "read_stream",
    "resuming",
    "resuming_blocking",
]

_PAUSE_SECONDS = 0.1

Open = Callable[[pb.GenerateRequest | pb.ResumeRequest], Any]


def open_unary(channel: Any, method: str, request: Any, response_type: Any) -> Any:
    """A method with one answer, to be called with the request."""
    return channel.unary_unary(
        method,
        request_serializer=type(request).SerializeToString,
        response_deserializer=response_type.FromString,
    )


def open_stream(channel: Any, method: str, request: Any, response_type: Any) -> Any:
    """A method with many answers, to be called with the request."""
    return channel.unary_stream(
        method,
        request_serializer=type(request).SerializeToString,
        response_deserializer=response_type.FromString,
    )


def open_chunks(
    channel: Any, request: pb.GenerateRequest | pb.ResumeRequest, timeout: Any, metadata: Any
) -> Any:
    """The call for an answer's chunks, from its beginning or on from a place."""
    name = "GenerateStream" if isinstance(request, pb.GenerateRequest) else "ResumeStream"
    method = f"/blockyard.v1.Generation/{name}"
    call = open_stream(channel, method, request, pb.GenerateChunk)
    return call(request, timeout=timeout, metadata=metadata)


async def read_stream(call: Any) -> AsyncGenerator[Any, None]:
    """What comes, until it ends; closing it cancels the call. Raises `ServerError`."""
    try:
        async for message in call:
            yield message
    except grpc.RpcError as error:
        raise server_error(error) from None
    finally:
        call.cancel()


def read_blocking_stream(call: Any) -> Generator[Any, None, None]:
    """The same for code without an event loop."""
    try:
        yield from call
    except grpc.RpcError as error:
        raise server_error(error) from None
    finally:
        call.cancel()


class _Place:
    """How far an answer has come, and whether it may be read on."""

    def __init__(self, request: pb.GenerateRequest) -> None:
        self._grace_seconds = request.resume_seconds
        self._cut_at: float | None = None
        self._cut: ServerError | None = None
        self._ended: set[int] = set()
        self._tokens_seen = 0
        self.first = request
        if self._grace_seconds and not request.request_id:
            self.first = pb.GenerateRequest()
            self.first.CopyFrom(request)
            self.first.request_id = secrets.token_hex(12)

    @property
    def resumable(self) -> bool:
        """Whether a cut does not end it."""
        return self._grace_seconds > 0

    def take(self, chunk: pb.GenerateChunk) -> bool:
        """Count a chunk; whether it is new."""
        self._cut_at = None
        if chunk.choice in self._ended:
            return False
        self._tokens_seen += len(chunk.token_ids)
        if chunk.finish_reason:
            self._ended.add(chunk.choice)
        return True

    def rest(self, error: ServerError) -> pb.ResumeRequest:
        """What to ask after a failure; raises it, or the cut before it, when that is no use."""
        now = time.monotonic()
        if not self.resumable or error.reached:
            raise error if self._cut is None or error.code != "NOT_FOUND" else self._cut
        if self._cut_at is None:
            self._cut_at, self._cut = now, error
        elif now - self._cut_at > self._grace_seconds:
            raise error
        return pb.ResumeRequest(request_id=self.first.request_id, tokens_seen=self._tokens_seen)


async def resuming(
    open_call: Open, request: pb.GenerateRequest, abort: Callable[[str], Awaitable[bool]]
) -> AsyncGenerator[pb.GenerateChunk, None]:
    """An answer's chunks. Closing it ends the request. Raises `ServerError`."""
    place = _Place(request)
    call = open_call(place.first)
    while True:
        try:
            async with aclosing(read_stream(call)) as chunks:
                async for chunk in chunks:
                    if place.take(chunk):
                        yield chunk
            return
        except ServerError as error:
            again = place.rest(error)
        except BaseException:  # closed or cancelled: nobody wants the rest
            if place.resumable:
                with contextlib.suppress(ServerError):
                    await asyncio.shield(asyncio.ensure_future(abort(place.first.request_id)))
            raise
        await asyncio.sleep(_PAUSE_SECONDS)
        call = open_call(again)


def resuming_blocking(
    open_call: Open, request: pb.GenerateRequest, abort: Callable[[str], bool]
) -> Generator[pb.GenerateChunk, None, None]:
    """The same for code without an event loop."""
    place = _Place(request)
    call = open_call(place.first)
    while True:
        try:
            with closing(read_blocking_stream(call)) as chunks:
                for chunk in chunks:
                    if place.take(chunk):
                        yield chunk
            return
        except ServerError as error:
            again = place.rest(error)
        except BaseException:  # closed or interrupted: nobody wants the rest
            if place.resumable:
                with contextlib.suppress(ServerError):
                    abort(place.first.request_id)
            raise
        time.sleep(_PAUSE_SECONDS)
        call = open_call(again)
