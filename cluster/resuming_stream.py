"""A request's news from whichever group runs it: when one is lost, another goes on with it.

The client sees one stream of the same tokens. A request is moved a few times at the most: one that
brings engines down must not bring down all of them. Knows no wire.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from blockyard.cluster.between_groups import CalledOff
from blockyard.cluster.engine_stream import EngineStream
from blockyard.cluster.journal import Journal
from blockyard.cluster.logs import fields
from blockyard.cluster.relief import RequestMoved
from blockyard.scheduler.request import FinishReason, RefusalCode, RequestRefused, RequestUpdate

__all__ = ["MAX_MOVES", "ResumingStream"]

logger = logging.getLogger(__name__)

MAX_MOVES = 3
"""Groups that a request may lose one after the other before its client is told."""
ENOUGH_TOKENS = 64
"""After so many more tokens it was not this request that brought the last group down."""


class ResumingStream:
    """Implements `dispatch.TokenStream`.

    Args:
        stream: of the group that has taken the request.
        journal: of the request.
        move: has another group go on with what the journal holds, as the move says if there is
            one; raises `RequestRefused` when none can, and `CalledOff`.
        end: called once, when nothing more is wanted or comes.
    """

    def __init__(
        self,
        stream: EngineStream,
        journal: Journal,
        move: Callable[[RequestMoved | None], Awaitable[EngineStream]],
        end: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._journal = journal
        self._move = move
        self._end: Callable[[], None] | None = end

    async def __aiter__(self) -> AsyncIterator[RequestUpdate]:
        """Iterate over updates until every choice has ended or was aborted.

        Raises:
            RequestRefused: the engine was lost, and no other can go on with the request.
        """
        moves = tokens = 0
        while True:
            try:
                async for update in self._stream:
                    tokens += len(update.token_ids)
                    self._journal.add(update)
                    if not self._journal.choices:
                        self._finish()
                    yield update
                return
            except RequestRefused as lost:
                if not self._journal.choices:
                    return
                if not isinstance(lost, RequestMoved):
                    moves = 1 if tokens >= ENOUGH_TOKENS else moves + 1
                    tokens = 0
                if lost.code is not RefusalCode.UNAVAILABLE or moves > MAX_MOVES:
                    self._finish()
                    raise
                try:
                    await self._go_on(lost)
                except CalledOff:
                    for choice in self._journal.choices:
                        self._journal.end(choice)
                        yield self._called_off(choice)
                    self._finish()
                    return

    async def abort(self, choice: int | None = None) -> None:
        """Free the blocks of the request, or of one choice. Safe in any state and twice."""
        for ended in self._journal.choices if choice is None else (choice,):
            self._journal.end(ended)
        await self._stream.abort(choice)
        if not self._journal.choices:
            self._finish()

    async def _go_on(self, lost: RequestRefused) -> None:
        wanted = self._journal.choices
        named = fields(request_id=self._stream.request_id)
        try:
            self._stream = await self._move(lost if isinstance(lost, RequestMoved) else None)
        except RequestRefused as refusal:
            logger.warning("no group can go on with a request: %s", refusal, extra=named)
            self._finish()
            # Whatever is in the way there is no mistake of the client, who was served already.
            raise lost from refusal
        logger.info("a request has lost its group and goes on at another one", extra=named)
        # Somebody may have left while it was on its way.
        for choice in wanted:
            if choice not in self._journal.choices:
                await self._stream.abort(choice)

    def _called_off(self, choice: int) -> RequestUpdate:
        return RequestUpdate(self._stream.request_id, (), FinishReason.ABORT, choice=choice)

    def _finish(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            end()
