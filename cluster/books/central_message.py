"""The central scheduler's books as the message that clients get, and preemptions of any books."""

from dataclasses import fields

from blockyard.cluster.books.central_books import CentralBooks
from blockyard.cluster.dispatch import CentralBooksSource
from blockyard.protos import cluster_pb2
from blockyard.scheduler.ledger import MoveCounts, PreemptionCounts

__all__ = ["ask_central", "central_message", "moves_message", "preemptions_message"]


def preemptions_message(counts: PreemptionCounts) -> cluster_pb2.PreemptionCounts:
    """What preemptions were, and what they cost."""
    return cluster_pb2.PreemptionCounts(**{f.name: getattr(counts, f.name) for f in fields(counts)})


def moves_message(counts: MoveCounts) -> cluster_pb2.MoveCounts:
    """Requests that came from other groups, and the blocks that went with them."""
    return cluster_pb2.MoveCounts(**{f.name: getattr(counts, f.name) for f in fields(counts)})


async def ask_central(dispatcher: object) -> CentralBooks | None:
    """The books, where there is a central scheduler behind a dispatcher and it says."""
    if not isinstance(dispatcher, CentralBooksSource):
        return None
    return await dispatcher.central_books()


def central_message(books: CentralBooks | None) -> cluster_pb2.CentralBooks | None:
    """All of it; None while it does not say."""
    if books is None:
        return None
    return cluster_pb2.CentralBooks(
        preempted=preemptions_message(books.preempted),
        decisions=books.decisions,
        swapped=books.swapped,
        recomputed=books.recomputed,
        moved=books.moved,
        relieved=books.relieved,
        moves=moves_message(books.moves),
        waiting=cluster_pb2.WaitingCounts(
            **{f.name: getattr(books.waiting, f.name) for f in fields(books.waiting)}
        ),
        recent=[
            cluster_pb2.WayMade(
                at=way.at,
                group_id=way.group_id,
                came_from=way.came_from,
                for_priority=way.for_priority,
                priority=way.priority,
                swapped=way.swapped,
                recomputed=way.recomputed,
                moved=way.moved,
                estimated_seconds=way.seconds,
            )
            for way in books.recent
        ],
    )
