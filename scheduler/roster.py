"""Everybody who is served: requests by id, and each of their choices until it ends.

Starts nobody and plans nothing; an end goes through here, whatever state the member is in. A
member is one choice of a request. Units: tokens.
"""

from collections.abc import Iterator

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.block_table import BlockTable
from blockyard.scheduler.request import FinishReason, Request, RequestSpec, RequestState

__all__ = ["Roster"]


class Roster:
    """Members of requests that have not ended."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._members: dict[str, list[Request]] = {}
        self._next_sequence = 0

    def __len__(self) -> int:
        """Requests of which some choice has not ended."""
        return len(self._members)

    def __contains__(self, request_id: object) -> bool:
        """Whether a request is served."""
        return request_id in self._members

    def __iter__(self) -> Iterator[Request]:
        """Every member, in no particular order."""
        return (member for members in self._members.values() for member in members)

    def members(self, request_id: str) -> tuple[Request, ...]:
        """The choices of a request that have not ended; none when it is not served."""
        return tuple(self._members.get(request_id, ()))

    def make(self, spec: RequestSpec, max_tokens: int, now: float) -> Request:
        """The one member with which a request begins; it forks when its prompt is computed."""
        request = Request(
            spec=spec,
            sequence=self._next_sequence,
            max_tokens=max_tokens,
            table=BlockTable(self._batch.config.block_size),
            arrived_at=now,
            tokens=list(spec.prompt_token_ids),
            pending_forks=list(range(1, spec.num_choices)),
        )
        self._batch.cache.join(request)
        return request

    def add(self, request: Request) -> None:
        """Serve the request just made."""
        self._next_sequence += 1
        self._members[request.request_id] = [request]
        self._batch.queue.push(request)

    def fork(self, parent: Request, choice: int, handle: int) -> Request:
        """A new member with all that its running parent has, known to the workers by `handle`.

        It has the place that its parent kept for it.
        """
        child = Request(
            spec=parent.spec,
            sequence=parent.sequence,
            max_tokens=parent.max_tokens,
            table=BlockTable(parent.table.block_size),
            arrived_at=parent.arrived_at,
            choice=choice,
            tokens=list(parent.tokens),
            handle=handle,
            last_step=parent.last_step,
            num_preemptions=parent.num_preemptions,
            cached_tokens=parent.cached_tokens,
            started_at=parent.started_at,
            first_token_at=parent.first_token_at,
        )
        self._members[parent.request_id].append(child)
        self._batch.fork(parent, child)
        return child

    def end(self, request: Request, reason: FinishReason) -> None:
        """Take a member off the books, wherever it is."""
        if request.state is RequestState.RUNNING:
            self._batch.watermark.observe(0, 1)
        else:
            self._batch.remove_waiting(request)
        self._batch.leave(request)
        members = self._members[request.request_id]
        members.remove(request)
        if not members:
            del self._members[request.request_id]
        request.state = RequestState.FINISHED
        request.finish_reason = reason
