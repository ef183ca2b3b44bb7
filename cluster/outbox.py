"""Updates on their way to one ingress, merged while it is slow to take them.

Holds at most one update for each request, so a slow reader costs memory bounded by the tokens its
own requests may produce, and never holds up the step loop. Knows no sockets.
"""

import asyncio

from blockyard.scheduler.request import RequestUpdate

__all__ = ["Outbox", "merge_updates"]


def merge_updates(earlier: RequestUpdate, later: RequestUpdate) -> RequestUpdate:
    """Two updates of one choice of a request, in order, as one."""
    weights = later.weights if later.token_ids else earlier.weights
    if earlier.token_ids and later.token_ids and earlier.weights != later.weights:
        # Other weights came in between; without a name are those that the server started with.
        weights = tuple(dict.fromkeys((earlier.weights or ("",)) + (later.weights or ("",))))
    return later._replace(
        token_ids=earlier.token_ids + later.token_ids,
        weights=weights,
        logprobs=earlier.logprobs + later.logprobs,
        prompt_logprobs=earlier.prompt_logprobs + later.prompt_logprobs,
    )


class Outbox:
    """One ingress's undelivered news."""

    def __init__(self) -> None:
        self._updates: dict[str, dict[int, RequestUpdate]] = {}
        self._filled = asyncio.Event()

    def put(self, update: RequestUpdate) -> None:
        """Add an update, merging it with one that is still here."""
        choices = self._updates.setdefault(update.request_id, {})
        earlier = choices.get(update.choice)
        choices[update.choice] = update if earlier is None else merge_updates(earlier, update)
        self._filled.set()

    def discard(self, request_id: str, choice: int | None = None) -> None:
        """Forget what is left for an aborted request, or one choice: its id may be used again."""
        if choice is None:
            self._updates.pop(request_id, None)
        elif (choices := self._updates.get(request_id)) is not None:
            choices.pop(choice, None)

    async def wait(self) -> None:
        """Wait until there is news."""
        await self._filled.wait()

    def take(self) -> tuple[RequestUpdate, ...]:
        """Take all news, perhaps none."""
        choices = self._updates.values()
        updates = tuple(update for by_choice in choices for update in by_choice.values())
        self._updates.clear()
        self._filled.clear()
        return updates
