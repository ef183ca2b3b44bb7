"""The answers to one prompt while an engine makes them, from one stream of tokens.

Turns updates to chunks, each for the answer that it belongs to, in the order in which they come. An
answer that a stop text ends is called off by itself; whoever leaves early calls off all. Knows no
gRPC.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from blockyard.cluster.dispatch import TokenStream
from blockyard.cluster.request.answer import Answer
from blockyard.cluster.request.api_error import RETRY_AFTER_SECONDS, ApiCode, ApiError
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.plan import NOTHING_LEFT
from blockyard.scheduler.request import FinishReason, RequestUpdate

__all__ = ["answer_chunks"]


async def answer_chunks(
    tokens: TokenStream, answers: Sequence[Answer]
) -> AsyncGenerator[pb.GenerateChunk, None]:
    """Chunks of all answers as they come; `answers` has one for each choice, in order.

    The first failure ends all of them.

    Raises:
        ApiError: generation failed, its deadline could not be met, or the engine went away.
        RequestRefused: the engine was lost.
    """
    ending = set(range(len(answers)))
    """Choices of which the engine has not said the last word, nor we."""
    try:
        async for update in tokens:
            answer = answers[update.choice]
            if update.finish_reason is not None:
                ending.discard(update.choice)
            _check_update(update)
            chunk = answer.take(update)
            if answer.finished and update.choice in ending:
                # A stop string: the engine learns of it before the client does.
                ending.discard(update.choice)
                await tokens.abort(update.choice if ending else None)
            if chunk.token_ids or chunk.text or answer.finished:
                yield chunk
        if not all(answer.finished for answer in answers):
            raise ApiError(
                ApiCode.UNAVAILABLE,
                "",
                "the group that served this request went away; send the request again",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
    finally:
        if ending:
            # Shielded: a second cancellation must not keep the blocks from being freed.
            await asyncio.shield(asyncio.ensure_future(tokens.abort()))


def _check_update(update: RequestUpdate) -> None:
    if update.finish_reason is FinishReason.ERROR and update.error == NOTHING_LEFT:
        raise ApiError(ApiCode.INVALID_ARGUMENT, "sampling", update.error)
    if update.finish_reason is FinishReason.ERROR:
        raise ApiError(
            ApiCode.INTERNAL,
            "",
            f"generation failed: {update.error or 'the engine gave no reason'}",
        )
    if update.finish_reason is FinishReason.DEADLINE:
        raise ApiError(ApiCode.DEADLINE_EXCEEDED, "", update.error)
