"""The streams of several prompts as one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

__all__ = ["merged"]

T = TypeVar("T")


async def merged(
    streams: Sequence[AsyncGenerator[T, None]],
) -> AsyncGenerator[tuple[int, T], None]:
    """Everything that comes, with the number of its stream. The first failure ends all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    waiting = {asyncio.create_task(_next(stream)): n for n, stream in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in waiting if task in done]:
                number = waiting.pop(task)
                items = task.result()
                if items:
                    yield number, items[0]
                    waiting[asyncio.create_task(_next(streams[number]))] = number
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        # Shielded: a second cancellation must not keep the others' blocks from being freed.
        closing = asyncio.gather(*(stream.aclose() for stream in streams))
        await asyncio.shield(closing)


async def _next(stream: AsyncGenerator[T, None]) -> list[T]:
    """The next one; nothing at the end."""
    async for item in stream:
        return [item]
    return []
