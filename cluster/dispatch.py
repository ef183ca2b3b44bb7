"""What the request path asks of whatever stands behind it: the seam between API and engines.

The API side (validation, text, gRPC, HTTP) knows only these protocols. The real one reaches
engines over the wire; tests put an engine in the same process behind it.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from prometheus_client.registry import Collector

from blockyard.cluster.books.arrival_log import ArrivalBatch
from blockyard.cluster.books.central_books import CentralBooks
from blockyard.cluster.books.group_books import GroupBooks
from blockyard.cluster.served_request import ServedRequest
from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.request import RequestSpec, RequestUpdate
from blockyard.scheduler.yard_map import YardMap
from blockyard.workers.description import ModelDescription

__all__ = [
    "ArrivalSource",
    "CentralBooksSource",
    "Dispatcher",
    "GroupReport",
    "GroupYard",
    "Metered",
    "RequestDirectory",
    "TokenStream",
]


@dataclass(frozen=True, slots=True)
class GroupReport:
    """One group's identity and its books."""

    group_id: str
    model: str
    device: str
    dtype: str
    books: GroupBooks

    @property
    def ledger(self) -> GroupLedger:
        """Its blocks, slots and requests."""
        return self.books.ledger


@dataclass(frozen=True, slots=True)
class GroupYard:
    """One group's books and, if it was asked for, a picture of its pool, taken right after."""

    report: GroupReport
    yard: YardMap | None


class TokenStream(Protocol):
    """News of one request, pulled by its reader.

    Iterating yields updates, each of one choice; those of a choice that came while the reader was
    slow arrive merged into one. The last of a choice carries `finish_reason`; after the last of all
    choices iteration ends. Losing the engine ends it with `RequestRefused(UNAVAILABLE)`.
    """

    def __aiter__(self) -> AsyncIterator[RequestUpdate]:
        """Iterate over updates until the request ends."""
        ...

    async def abort(self, choice: int | None = None) -> None:
        """Free the blocks of the request, or of one choice, now, and tell no more of it.

        Safe in any state, safe to call twice.
        """
        ...


@runtime_checkable
class ArrivalSource(Protocol):
    """A dispatcher whose engines tell what they were asked for."""

    async def arrivals(self, after: Mapping[str, int]) -> dict[str, ArrivalBatch]:
        """Requests that have ended in each group since a number, by group id."""
        ...


@runtime_checkable
class RequestDirectory(Protocol):
    """A dispatcher that finds requests by the names that their clients know."""

    async def requests(
        self, tenant: str, name: str, call_off: bool = False
    ) -> tuple[ServedRequest, ...]:
        """A tenant's requests with a name, as they stood; they are ended with `call_off`."""
        ...


@runtime_checkable
class CentralBooksSource(Protocol):
    """A dispatcher that asks a central scheduler for its books."""

    async def central_books(self) -> CentralBooks | None:
        """Every preemption of any group; None when it does not say."""
        ...


@runtime_checkable
class Metered(Protocol):
    """A dispatcher that counts the requests it is handed, for Prometheus."""

    @property
    def meters(self) -> Sequence[Collector]:
        """What has been counted."""
        ...


class Dispatcher(Protocol):
    """Finds a group for a request and brings its tokens back."""

    def models(self) -> tuple[ModelDescription, ...]:
        """Models that can be asked for; the first is the default."""
        ...

    async def submit(self, model: str, spec: RequestSpec) -> TokenStream:
        """Hand a request to a group that serves `model`.

        Raises:
            RequestRefused: the caller's mistake, too much load, or no group ready.
        """
        ...

    async def reports(self, audit: bool = False, memory: bool = False) -> tuple[GroupReport, ...]:
        """The books of every group, asked for now; see `GroupBooks` for the two that cost more."""
        ...

    async def ready(self) -> bool:
        """Whether traffic is welcome."""
        ...
