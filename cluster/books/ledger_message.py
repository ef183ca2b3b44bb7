"""One group's books as the message that clients get: counts, bytes per rank, percentages.

Only restates what a report has. Bytes are counts times a rank's own bytes of a block or slot, so
they add up whenever the counts do. Units: as in the proto.
"""

from blockyard.cluster.books.central_message import moves_message, preemptions_message
from blockyard.cluster.capacity.quantities import format_bytes
from blockyard.cluster.dispatch import GroupReport
from blockyard.protos import cluster_pb2
from blockyard.scheduler.contiguous.books import Refusal
from blockyard.scheduler.contiguous.shadow_report import PolicyReport, summary_line
from blockyard.scheduler.ledger import BlockCounts, GroupLedger, SlotCounts
from blockyard.scheduler.rank_facts import GroupFacts, RankFacts
from blockyard.workers.config import AllocatorMemory

__all__ = ["ledger_message"]


def ledger_message(report: GroupReport) -> cluster_pb2.GroupLedger:
    """One group's books as a message."""
    ledger, books = report.ledger, report.books
    requests = ledger.requests
    bytes_per_slot = books.facts.block_bytes // ledger.block_size if books.facts else None
    return cluster_pb2.GroupLedger(
        blocks=_blocks(ledger.blocks),
        slots=_slots(ledger.slots),
        requests=cluster_pb2.RequestCounts(
            running=requests.running, waiting=requests.waiting, parked=requests.parked
        ),
        block_size=ledger.block_size,
        step=ledger.step,
        preemptions=ledger.preemptions,
        stalled_steps=ledger.stalled_steps,
        group_id=report.group_id,
        model=report.model,
        device=report.device,
        dtype=report.dtype,
        tokens=_tokens(ledger),
        wastes=_wastes(ledger),
        host_blocks=_blocks(ledger.host_blocks),
        ranks=_ranks(ledger, books.facts, books.allocators),
        sum=_sum(ledger, books.facts, books.allocators, report.device),
        contiguous=[_contiguous(policy, bytes_per_slot) for policy in books.shadow],
        summary=summary_line(books.shadow[0], ledger) if books.shadow else "",
        audit=books.audit,
        preempted=preemptions_message(ledger.preempted),
        moves=moves_message(ledger.moves),
        wire_bytes_per_second=ledger.wire_bytes_per_second,
    )


def _blocks(counts: BlockCounts, each: int = 1) -> cluster_pb2.BlockCounts:
    return cluster_pb2.BlockCounts(
        total=counts.total * each,
        free=counts.free * each,
        cached=counts.cached * each,
        active=counts.active * each,
        fenced=counts.fenced * each,
    )


def _slots(counts: SlotCounts, block_bytes: int = 1, block_size: int = 1) -> cluster_pb2.SlotCounts:
    return cluster_pb2.SlotCounts(
        filled=counts.filled * block_bytes // block_size,
        promised=counts.promised * block_bytes // block_size,
        empty_tail=counts.empty_tail * block_bytes // block_size,
    )


def _tokens(ledger: GroupLedger) -> cluster_pb2.TokenCounts:
    filled = ledger.slots.filled
    return cluster_pb2.TokenCounts(
        logical=ledger.logical_tokens,
        physical=filled,
        sharing_ratio=round(ledger.logical_tokens / filled, 4) if filled else 1.0,
        prompt=ledger.prompt_tokens,
        prefix_hits=ledger.prefix_hit_tokens,
        recomputed=ledger.recomputed_tokens,
        merged_blocks=ledger.merged_blocks,
    )


def _wastes(ledger: GroupLedger) -> cluster_pb2.Wastes:
    slots = ledger.slots
    held = ledger.blocks.active * ledger.block_size
    return cluster_pb2.Wastes(
        filled_percent=_percent(slots.filled, held),
        promised_percent=_percent(slots.promised, held),
        empty_tail_percent=_percent(slots.empty_tail, held),
        external_fragmentation_percent=0.0,
        pool_filled_percent=_percent(slots.filled, ledger.blocks.total * ledger.block_size),
    )


def _ranks(
    ledger: GroupLedger,
    facts: GroupFacts | None,
    allocators: tuple[AllocatorMemory | None, ...],
) -> list[cluster_pb2.RankBytes]:
    if facts is None:
        return []
    known = allocators or (None,) * len(facts.ranks)
    return [
        _rank(ledger, rank, allocator) for rank, allocator in zip(facts.ranks, known, strict=False)
    ]


def _rank(
    ledger: GroupLedger, facts: RankFacts, allocator: AllocatorMemory | None
) -> cluster_pb2.RankBytes:
    return cluster_pb2.RankBytes(
        rank=facts.rank,
        device=facts.device,
        block_bytes=facts.block_bytes,
        blocks=_blocks(ledger.blocks, facts.block_bytes),
        slots=_slots(ledger.slots, facts.block_bytes, ledger.block_size),
        host_blocks=_blocks(ledger.host_blocks, facts.block_bytes),
        weight_bytes=facts.weight_bytes,
        activation_bytes=facts.activation_bytes,
        graph_bytes=facts.graph_bytes,
        allocator=_allocator(allocator),
    )


def _sum(
    ledger: GroupLedger,
    facts: GroupFacts | None,
    allocators: tuple[AllocatorMemory | None, ...],
    device: str,
) -> cluster_pb2.RankBytes | None:
    if facts is None:
        return None
    known = [allocator for allocator in allocators if allocator is not None]
    together = AllocatorMemory(
        reserved_bytes=sum(allocator.reserved_bytes for allocator in known),
        allocated_bytes=sum(allocator.allocated_bytes for allocator in known),
        free_bytes=sum(allocator.free_bytes for allocator in known),
        # An allocation takes a piece on every rank.
        largest_free_bytes=sum(allocator.largest_free_bytes for allocator in known),
    )
    # A part of the ranks would pass for all of them.
    whole = len(known) == len(facts.ranks)
    return cluster_pb2.RankBytes(
        device=device,
        block_bytes=facts.block_bytes,
        blocks=_blocks(ledger.blocks, facts.block_bytes),
        slots=_slots(ledger.slots, facts.block_bytes, ledger.block_size),
        host_blocks=_blocks(ledger.host_blocks, facts.block_bytes),
        weight_bytes=facts.weight_bytes,
        activation_bytes=facts.activation_bytes,
        graph_bytes=facts.graph_bytes,
        allocator=_allocator(together) if whole else None,
    )


def _allocator(memory: AllocatorMemory | None) -> cluster_pb2.AllocatorBytes | None:
    if memory is None:
        return None
    return cluster_pb2.AllocatorBytes(
        reserved=memory.reserved_bytes,
        allocated=memory.allocated_bytes,
        slack=memory.slack_bytes,
        free=memory.free_bytes,
        largest_free=memory.largest_free_bytes,
        external_fragmentation_percent=round(100 * memory.external_fragmentation, 2),
    )


def _contiguous(report: PolicyReport, bytes_per_slot: int | None) -> cluster_pb2.ContiguousServer:
    books = report.books
    given_out = books.capacity - books.free
    return cluster_pb2.ContiguousServer(
        policy=books.policy,
        running=books.running,
        queued=report.queued,
        peak_running=report.peak_running,
        delayed=report.delayed,
        refused=report.never_started,
        evicted=report.evictions,
        capacity=books.capacity,
        filled=books.filled,
        reservation=books.reservation,
        internal=books.internal,
        free=books.free,
        largest_hole=books.largest_hole,
        holes=books.num_holes,
        external_fragmentation_percent=round(100 * books.external_fragmentation, 2),
        filled_percent=_percent(books.filled, given_out),
        reservation_percent=_percent(books.reservation, given_out),
        internal_percent=_percent(books.internal, given_out),
        pool_filled_percent=_percent(books.filled, books.capacity),
        behind_seconds=round(report.behind_seconds, 3),
        first_out_of_memory=_moment(
            books.first_refusal, report.first_refusal_seconds, bytes_per_slot
        ),
        first_fragmented=_moment(
            books.first_fragmented, report.first_fragmented_seconds, bytes_per_slot
        ),
    )


def _moment(
    refusal: Refusal | None, seconds: float | None, bytes_per_slot: int | None
) -> cluster_pb2.OutOfMemory | None:
    if refusal is None:
        return None
    free, needed, hole, idle = (
        f"{slots:,} slots" if bytes_per_slot is None else format_bytes(slots * bytes_per_slot)
        for slots in (refusal.free, refusal.needed, refusal.largest_hole, refusal.reserved_idle)
    )
    return cluster_pb2.OutOfMemory(
        after_seconds=round(seconds or 0.0, 3),
        needed=refusal.needed,
        free=refusal.free,
        largest_hole=refusal.largest_hole,
        reserved_idle=refusal.reserved_idle,
        running=refusal.running,
        message=(
            f"out of memory with {free} free: {needed} needed in one piece, largest hole {hole}, "
            f"and {idle} reserved but empty; {refusal.running} requests running"
        ),
    )


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0
