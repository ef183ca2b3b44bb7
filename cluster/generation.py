"""One request's way from the client's message to the client's text, whatever the transport.

Validates, submits through the dispatcher, turns tokens to text, finds stop strings. On every way
out that is not the request's own end (client gone, stop string, failure) the engine is told, so
that the blocks are free within a step. Knows no gRPC. Units: tokens, seconds.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from blockyard.cluster.answer import Answer
from blockyard.cluster.api_error import RETRY_AFTER_SECONDS, ApiCode, ApiError, from_refusal
from blockyard.cluster.dispatch import Dispatcher, TokenStream
from blockyard.cluster.request_limits import MAX_MODEL_NAME_CHARACTERS
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.cluster.validation import PreparedRequest, prepare_request
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import FinishReason, RequestRefused, RequestUpdate
from blockyard.workers.description import ModelDescription

__all__ = ["GenerationService", "find_model", "unexpected_error"]

_LOG = logging.getLogger(__name__)


class GenerationService:
    """Serves `Generation` over any dispatcher. Many requests run in it at once."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        tokenizers: Mapping[str, ModelTokenizer],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tokenizers` has one entry for each model of the dispatcher, by name."""
        self._dispatcher = dispatcher
        self._tokenizers = tokenizers
        self._clock = clock

    async def generate(self, request: pb.GenerateRequest) -> pb.GenerateResponse:
        """The whole answer.

        Raises:
            ApiError: refused, or failed on the way.
        """
        response = pb.GenerateResponse()
        text: list[str] = []
        async with aclosing(self.stream(request)) as chunks:
            async for chunk in chunks:
                text.append(chunk.text)
                response.token_ids.extend(chunk.token_ids)
        response.request_id, response.model = chunk.request_id, chunk.model
        response.finish_reason = chunk.finish_reason
        response.usage.CopyFrom(chunk.usage)
        response.timings.CopyFrom(chunk.timings)
        response.text = "".join(text)
        return response

    async def stream(self, request: pb.GenerateRequest) -> AsyncGenerator[pb.GenerateChunk, None]:
        """The answer in pieces; the last has `finish_reason`. Close it to leave early.

        Raises:
            ApiError: refused, or failed on the way.
        """
        arrived_at = self._clock()
        try:
            prepared = await self._prepare(request)
            answer = Answer(
                prepared.options,
                num_prompt=len(prepared.spec.prompt_token_ids),
                decoder=self._tokenizers[prepared.options.model].decoder(),
                arrived_at=arrived_at,
                clock=self._clock,
            )
            tokens = await self._dispatcher.submit(prepared.options.model, prepared.spec)
            async with aclosing(self._follow(tokens, answer)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except ApiError:
            raise
        except RequestRefused as refusal:
            raise from_refusal(refusal) from None
        except Exception as error:
            raise unexpected_error(error, "a generation request") from error

    async def _prepare(self, request: pb.GenerateRequest) -> PreparedRequest:
        model = find_model(self._dispatcher, request.model, "model")
        tokenizer = self._tokenizers.get(model.name)
        if tokenizer is None:
            raise ApiError(
                ApiCode.UNAVAILABLE,
                "model",
                f"{model.name!r} is still being loaded; try again soon",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        return await prepare_request(request, model, tokenizer)

    async def _follow(
        self, tokens: TokenStream, answer: Answer
    ) -> AsyncGenerator[pb.GenerateChunk, None]:
        """Turn the engine's updates to chunks until either side ends the request."""
        ended = False
        try:
            async for update in tokens:
                ended = update.finish_reason is not None
                _check_update(update)
                chunk = answer.take(update)
                if answer.finished and not ended:
                    # A stop string: the engine learns of it before the client does.
                    await tokens.abort()
                    ended = True
                if chunk.token_ids or chunk.text or answer.finished:
                    yield chunk
                if answer.finished:
                    return
        finally:
            if not ended:
                # Shielded: a second cancellation must not keep the blocks from being freed.
                await asyncio.shield(asyncio.ensure_future(tokens.abort()))
        raise ApiError(
            ApiCode.UNAVAILABLE,
            "",
            "the group that served this request went away; send the request again",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )


def find_model(dispatcher: Dispatcher, name: str, field: str) -> ModelDescription:
    """The model of that name; the default one for an empty name.

    Raises:
        ApiError: NOT_FOUND naming `field`; UNAVAILABLE while no model is served.
    """
    models = dispatcher.models()
    if not models:
        raise ApiError(
            ApiCode.UNAVAILABLE,
            field,
            "no model is loaded yet; try again soon",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )
    if not name:
        return models[0]
    for model in models:
        if model.name == name:
            return model
    shown = name if len(name) <= MAX_MODEL_NAME_CHARACTERS else name[:40] + "..."
    served = ", ".join(model.name for model in models)
    raise ApiError(ApiCode.NOT_FOUND, field, f"{shown!r} is not served here; served: {served}")


def unexpected_error(error: BaseException, doing: str) -> ApiError:
    """Log a failure of our own under an id, and give the client that id and nothing else."""
    incident = secrets.token_hex(6)
    _LOG.error("incident %s in %s", incident, doing, exc_info=error)
    return ApiError(
        ApiCode.INTERNAL,
        "",
        f"the server failed; its log tells more under incident {incident}",
        incident=incident,
    )


def _check_update(update: RequestUpdate) -> None:
    if update.finish_reason is FinishReason.ERROR:
        raise ApiError(
            ApiCode.INTERNAL,
            "",
            f"generation failed: {update.error or 'the engine gave no reason'}",
        )
