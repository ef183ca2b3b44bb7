"""All that an engine tells of its group when it is asked for the books.

Values only. What costs more than reading counters is asked for by name: the audit walks every
request and block, and ranks on a GPU are asked for their allocators. Units: blocks, slots, bytes.
"""

from dataclasses import dataclass

from blockyard.cluster.books.step_meter import NO_STEPS, StepTimes
from blockyard.scheduler.contiguous.shadow_report import PolicyReport
from blockyard.scheduler.ledger import GroupLedger
from blockyard.scheduler.rank_facts import GroupFacts, RankFacts
from blockyard.workers.config import AllocatorMemory, WorkerProfile

__all__ = ["GroupBooks", "facts_of"]


@dataclass(frozen=True, slots=True)
class GroupBooks:
    """One group's books at one moment.

    Attributes:
        ledger: blocks, slots and requests.
        shadow: contiguous servers with the same requests; empty when none is modelled.
        facts: bytes that do not change; None where they are not known.
        allocators: for each rank what its device's allocator holds; None where it has none, or did
            not say in time. Empty when not asked for.
        steps: where the time of steps went; empty where nobody measures.
        audit: what is wrong with the books, empty when they add up; None when not asked for.
    """

    ledger: GroupLedger
    shadow: tuple[PolicyReport, ...] = ()
    facts: GroupFacts | None = None
    allocators: tuple[AllocatorMemory | None, ...] = ()
    audit: str | None = None
    steps: StepTimes = NO_STEPS


def facts_of(profiles: list[WorkerProfile]) -> GroupFacts:
    """A group's facts from what its ranks measured, in rank order."""
    return GroupFacts(
        tuple(
            RankFacts(
                rank,
                profile.device,
                profile.block_bytes,
                profile.weight_bytes,
                profile.activation_bytes,
                profile.graph_bytes,
            )
            for rank, profile in enumerate(profiles)
        )
    )
