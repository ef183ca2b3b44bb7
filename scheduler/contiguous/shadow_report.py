"""What the contiguous shadow says: counts of each policy, and the line that compares.

Counting happens in `shadow_server.py`; this module gives the counts their names. Units: token
slots, requests, seconds since the shadow began.
"""

from dataclasses import dataclass

from blockyard.scheduler.contiguous.books import ContiguousBooks
from blockyard.scheduler.ledger import GroupLedger

__all__ = ["PolicyReport", "summary_line"]


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """One contiguous server at one moment, with the memory and the requests of the real pool.

    Attributes:
        books: its memory.
        queued: requests that wait for room, though here they run or wait too.
        peak_running: most that have run at once so far.
        delayed: requests that could not start when they came.
        never_started: requests that ended here before they found room there: refused.
        evictions: requests that had to give up a full piece, with no larger one to move to.
        first_refusal_seconds: when memory first ran out; None while it never did.
        first_fragmented_seconds: when it first did although enough was free in all.
        behind_seconds: how old this moment is: who must know final lengths waits for the ends.
    """

    books: ContiguousBooks
    queued: int
    peak_running: int
    delayed: int
    never_started: int
    evictions: int
    first_refusal_seconds: float | None
    first_fragmented_seconds: float | None
    behind_seconds: float


def summary_line(report: PolicyReport, ledger: GroupLedger) -> str:
    """The comparison that a person reads."""
    total = ledger.blocks.total * ledger.block_size
    filled = ledger.slots.filled / total if total else 0.0
    return (
        f"contiguous({report.books.policy}): {report.books.running} running, "
        f"{100 * report.books.pool_filled_ratio:.0f} % of memory holds tokens; "
        f"blockyard: {ledger.requests.running} running, {100 * filled:.0f} %"
    )
