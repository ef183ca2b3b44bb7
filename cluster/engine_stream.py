"""News of one request on its way from an engine's connection to whoever reads it.

Updates that arrive while the reader is slow are merged, so a stream holds at most one undelivered
update for each choice. Knows no wire.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

from blockyard.cluster.outbox import merge_updates
from blockyard.scheduler.request import RequestRefused, RequestUpdate

__all__ = ["EngineStream", "first_words_first"]


class EngineStream:
    """News of one request. Implements `dispatch.TokenStream`."""

    def __init__(
        self,
        request_id: str,
        choices: Iterable[int],
        tell_abort: Callable[["EngineStream", int | None], None],
    ) -> None:
        """`choices` are those that have not ended; `tell_abort` tells the engine of an abort."""
        self.request_id = request_id
        self._tell_abort = tell_abort
        self._updates: dict[int, RequestUpdate] = {}
        # Choices whose last word has not come.
        self._live = set(choices)
        self._refusal: RequestRefused | None = None
        self._news = asyncio.Event()
        self.has_begun = False
        """Whether the engine has sent anything for it."""
        self.accepted: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        """Done when the engine has taken the request: most tokens, where the client named none."""

    @property
    def ended(self) -> bool:
        """Whether the engine will say nothing more that anybody wants to hear."""
        return not self._live

    def put(self, update: RequestUpdate) -> None:
        """Add what the engine sent."""
        choice = update.choice
        if choice not in self._live:
            return  # said before it heard that nobody wants this one any more
        if update.finish_reason is not None:
            self._live.discard(choice)
        earlier = self._updates.get(choice)
        self._updates[choice] = update if earlier is None else merge_updates(earlier, update)
        self.has_begun = True
        self._news.set()

    def refuse(self, refusal: RequestRefused) -> None:
        """End the stream, after what was put: the engine did not take the request, or lost it."""
        if not self.accepted.done():
            self.accepted.set_exception(refusal)
            return
        self._refusal = refusal
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[RequestUpdate]:
        """Iterate over updates until every choice has ended or was aborted.

        Raises:
            RequestRefused: the engine was lost.
        """
        while True:
            if self._updates:
                yield self._updates.pop(next(iter(self._updates)))
            elif self.ended:
                return
            elif self._refusal is not None:
                raise self._refusal
            else:
                self._news.clear()
                await self._news.wait()

    async def abort(self, choice: int | None = None) -> None:
        """Free the blocks of the request, or of one choice. Safe in any state and twice."""
        if choice is None:
            self._updates.clear()
            self._live.clear()
            self._tell_abort(self, None)
        else:
            self._updates.pop(choice, None)
            if choice in self._live:
                self._live.discard(choice)
                self._tell_abort(self, choice)
        self._news.set()


def first_words_first(
    updates: Sequence[RequestUpdate], streams: Mapping[str, EngineStream]
) -> list[RequestUpdate]:
    """A step's updates in the order to put them: those of streams that have said nothing yet first.

    Readers write in the order in which they are told, so a first token would wait until a token of
    every other stream is written: some milliseconds where there are dozens.
    """
    first: list[RequestUpdate] = []
    later: list[RequestUpdate] = []
    for update in updates:
        stream = streams.get(update.request_id)
        (later if stream is None or stream.has_begun else first).append(update)
    return first + later
