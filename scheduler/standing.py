"""Who waits in a group that is full, and who would give way there: what others may decide by.

One group's own view, taken between two steps; made for who sees all groups. A group that has room
has nothing to tell. Units: blocks, tokens, requests.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from blockyard.scheduler.batch import Batch
from blockyard.scheduler.config import PreemptionPolicy
from blockyard.scheduler.cost_model import CostModel
from blockyard.scheduler.request import Request, RequestState
from blockyard.scheduler.scheduler import Scheduler

__all__ = ["SPARE_SHARE", "Standing", "Waiting", "Yielding", "standing_of"]

SPARE_SHARE = 0.2
"""Part of a pool that must stay free for what runs there already to grow into."""
_MOST_YIELDING = 16
"""So many victims at the most would be taken for one request on behalf of another group."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The request whose turn is next in a group's queue.

    Attributes:
        request_id: its id.
        priority: of the request.
        tokens: known of it, all of which it must hold.
        places: that it needs at once.
        movable: no part of it runs, so that it can go to another group.
    """

    request_id: str
    priority: int
    tokens: int
    places: int = 1
    movable: bool = True


@dataclass(frozen=True, slots=True)
class Yielding:
    """A request that could give way.

    Attributes:
        request_id: its id.
        priority: of the request.
        blocks: that nobody else holds.
        tokens: known of it.
        has_place: it runs; else it is parked and still holds blocks.
        movable: it is one choice alone, so that it can go to another group.
    """

    request_id: str
    priority: int
    blocks: int
    tokens: int
    has_place: bool = True
    movable: bool = True


@dataclass(frozen=True, slots=True)
class Standing:
    """One group that is full, or nearly so.

    Attributes:
        waiting: whose turn is next; None when nobody waits.
        yielding: who would give way, first the one that is taken first; the most urgent are left
            out.
        places_left: that nobody has.
        watermark: blocks that an admission without victims leaves free.
        host_blocks: that a victim's blocks may be swapped to.
        rates: what swaps and recomputes take there.
    """

    waiting: Waiting | None
    yielding: tuple[Yielding, ...]
    places_left: int
    watermark: int
    host_blocks: int
    rates: CostModel


def standing_of(scheduler: Scheduler) -> Standing | None:
    """How a group stands that is short of places or blocks; None while it is not."""
    batch = scheduler.batch
    pool = batch.pool
    spare = scheduler._num_blocks * SPARE_SHARE
    head = batch.queue.head()
    if head is None and batch.num_places_left and pool.num_available >= spare:
        return None
    host = batch.parking.host.num_available
    swaps = batch.config.preemption is not PreemptionPolicy.RECOMPUTE
    return Standing(
        waiting=None if head is None else _waiting(scheduler, head),
        yielding=tuple(_yielding(scheduler, batch)),
        places_left=batch.num_places_left,
        watermark=batch.watermark.blocks(len(batch.running)),
        host_blocks=host if swaps else 0,
        rates=batch.parking.rates.model(),
    )


def _waiting(scheduler: Scheduler, head: Request) -> Waiting:
    members = scheduler.roster.members(head.request_id)
    running = any(member.state is RequestState.RUNNING for member in members)
    return Waiting(
        head.request_id,
        head.spec.priority,
        len(head.tokens),
        places=1 + len(head.pending_forks),
        movable=not running,
    )


def _yielding(scheduler: Scheduler, batch: Batch) -> Iterator[Yielding]:
    """In the order in which an engine takes them: who is parked and holds blocks, then who runs."""
    order = (*reversed(batch.parking.holders), *reversed(batch.running))
    for request in order[:_MOST_YIELDING]:
        members = scheduler.roster.members(request.request_id)
        yield Yielding(
            request.request_id,
            request.spec.priority,
            batch.holdings.num_exclusive(request),
            len(request.tokens),
            has_place=request.state is RequestState.RUNNING,
            movable=len(members) == 1 and not request.pending_forks,
        )
