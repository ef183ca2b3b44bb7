"""Updates on their way to one ingress, merged while it is slow to take them.

Holds at most one entry for each live request, so a slow reader costs memory bounded by the tokens
its own requests may produce, and never holds up the step loop. Knows no sockets.
"""

import asyncio

from blockyard.cluster.messages import Refused
from blockyard.scheduler.request import RequestUpdate

__all__ = ["Outbox", "merge_updates"]


def merge_updates(earlier: RequestUpdate, later: RequestUpdate) -> RequestUpdate:
    """Two updates of one request, in order, as one."""
    return later._replace(token_ids=earlier.token_ids + later.token_ids)


class Outbox:
    """One ingress's undelivered news."""

    def __init__(self) -> None:
        self._updates: dict[str, RequestUpdate] = {}
        self._refusals: list[Refused] = []
        self._filled = asyncio.Event()

    def put(self, update: RequestUpdate) -> None:
        """Add an update, merging it with one that is still here."""
        earlier = self._updates.get(update.request_id)
        self._updates[update.request_id] = (
            update if earlier is None else merge_updates(earlier, update)
        )
        self._filled.set()

    def put_refusal(self, refusal: Refused) -> None:
        """Add the news that a request is lost, after its last tokens."""
        self._refusals.append(refusal)
        self._filled.set()

    def discard(self, request_id: str) -> None:
        """Forget what is left for an aborted request."""
        self._updates.pop(request_id, None)

    async def take(self) -> tuple[tuple[RequestUpdate, ...], tuple[Refused, ...]]:
        """Wait until there is news and take all of it."""
        await self._filled.wait()
        self._filled.clear()
        updates, refusals = tuple(self._updates.values()), tuple(self._refusals)
        self._updates.clear()
        self._refusals.clear()
        return updates, refusals
