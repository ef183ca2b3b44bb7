"""The answers to one prompt while engines make them, each from its own stream of tokens.

Turns updates to chunks and interleaves the chunks of all answers. Holds at most one chunk of each,
so a slow client stays cheap. Whoever leaves early has every engine told. Knows no gRPC.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from blockyard.cluster.dispatch import TokenStream
from blockyard.cluster.request.answer import Answer
from blockyard.cluster.request.api_error import RETRY_AFTER_SECONDS, ApiCode, ApiError
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import FinishReason, RequestUpdate

__all__ = ["ChoiceStream", "interleaved"]


class ChoiceStream:
    """One answer: pull chunks with `next`, and `close` it whatever happens."""

    def __init__(self, tokens: TokenStream, answer: Answer) -> None:
        self._tokens = tokens
        self._updates = aiter(tokens)
        self._answer = answer
        self._ended = False

    async def next(self) -> pb.GenerateChunk | None:
        """The next chunk; None after the last.

        Raises:
            ApiError: generation failed, or the engine went away.
            RequestRefused: the engine was lost.
        """
        while not self._answer.finished:
            update = await anext(self._updates, None)
            if update is None:
                raise ApiError(
                    ApiCode.UNAVAILABLE,
                    "",
                    "the group that served this request went away; send the request again",
                    retry_after_seconds=RETRY_AFTER_SECONDS,
                )
            self._ended = update.finish_reason is not None
            _check_update(update)
            chunk = self._answer.take(update)
            if self._answer.finished:
                # A stop string: the engine learns of it before the client does.
                await self.close()
            if chunk.token_ids or chunk.text or self._answer.finished:
                return chunk
        return None

    async def close(self) -> None:
        """Tell the engine, unless the request has ended there. Safe to call twice."""
        if not self._ended:
            await self._tokens.abort()
            self._ended = True


async def interleaved(choices: Sequence[ChoiceStream]) -> AsyncGenerator[pb.GenerateChunk, None]:
    """Chunks of all answers as they come. The first failure ends all of them."""
    waiting: dict[asyncio.Task[pb.GenerateChunk | None], ChoiceStream] = {}
    try:
        if len(choices) == 1:
            while (chunk := await choices[0].next()) is not None:
                yield chunk
            return
        for choice in choices:
            waiting[asyncio.create_task(choice.next())] = choice
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in waiting if task in done]:
                choice = waiting.pop(task)
                chunk = task.result()
                if chunk is not None:
                    yield chunk
                    waiting[asyncio.create_task(choice.next())] = choice
    finally:
        for task in waiting:
            task.cancel()
        # Shielded: a second cancellation must not keep the blocks from being freed.
        await asyncio.shield(asyncio.ensure_future(_leave(list(waiting), choices)))


async def _leave(
    tasks: Sequence[asyncio.Task[pb.GenerateChunk | None]], choices: Sequence[ChoiceStream]
) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*(choice.close() for choice in choices))


def _check_update(update: RequestUpdate) -> None:
    if update.finish_reason is FinishReason.ERROR:
        raise ApiError(
            ApiCode.INTERNAL,
            "",
            f"generation failed: {update.error or 'the engine gave no reason'}",
        )
